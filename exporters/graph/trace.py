"""Turn any trained classifier into a graph that can be cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from edge_kit.errors import ExportError
from exporters.graph.load import blame
from exporters.graph.macs import Recording, record
from exporters.graph.passes import fix_pools, fold_sizes, spell_out
from exporters.quiet import quiet

__all__ = ["Traced", "trace"]

PARITY = 1e-4


@dataclass(frozen=True)
class Traced:
    """A classifier as a graph, in eval mode, with what each node makes.

    Attributes:
        module: The graph; callable like the model that it came from.
        recording: Shapes and multiply-accumulates of one sample.
        input_shape: (channels, height, width).
        classes: Number of logits.
        method: ``fx`` or ``export``: which tracer succeeded.
    """

    module: fx.GraphModule
    recording: Recording
    input_shape: tuple[int, int, int]
    classes: int
    method: str

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one sample."""
        return sum(self.recording.macs.values())

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Return logits (N, classes) of a normalized batch (N, C, H, W)."""
        return self.module(batch)  # type: ignore[no-any-return]


def trace(model: nn.Module, shape: tuple[int, int, int]) -> Traced:
    """Turn `model` into a graph and check that the graph computes the same.

    Symbolic tracing comes first, since it keeps modules that can be trained on; a model whose
    Python control flow looks at shapes goes through `torch.export` instead.

    Args:
        model: A classifier of normalized images: (N, C, H, W) to (N, classes) logits.
        shape: (channels, height, width).

    Raises:
        ExportError: The model does not run at this size, gives no logits, or decides by the
            values of its input; the message names the line.
    """
    model = model.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        two, three = torch.randn(2, *shape), torch.randn(3, *shape)
    with torch.no_grad():
        expected = _run_once(model, two)
        module, method = _graph(model, two)
        try:
            fold_sizes(module, record(module, two), record(module, three))
            fix_pools(module, record(module, two))
            spell_out(module)
            recording = record(module, two[:1])
            difference = float((module(two) - expected).abs().max())
            module(three)
        except Exception as error:
            raise ExportError(
                f"the traced model does not run: {blame(error)}",
                "models must accept any batch size",
            ) from error
    scale = max(1.0, float(expected.abs().max()))
    if not difference <= PARITY * scale:
        raise ExportError(
            f"the traced model differs from the model by {difference:.3g} on random input",
            "it changes tensors in place or keeps hidden state; rewrite those lines",
        )
    return Traced(module, recording, shape, int(expected.shape[1]), method)


def _run_once(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    try:
        logits = model(batch)
    except Exception as error:
        size = " x ".join(str(s) for s in batch.shape[1:])
        raise ExportError(
            f"the model fails on an input of {size}: {blame(error)}",
            "it must take one tensor, a batch of images of this size; see --size",
        ) from error
    if not isinstance(logits, torch.Tensor):
        raise ExportError(
            f"the model returns a {type(logits).__name__}, not one tensor of logits",
            "wrap it in a module that returns the logits alone",
        )
    if logits.ndim != 2 or logits.shape[0] != len(batch) or logits.shape[1] < 2:
        raise ExportError(
            f"the model returns a tensor of shape {tuple(logits.shape)} for a batch of "
            f"{len(batch)}, not (batch, classes) logits",
            "an export takes classifiers with at least two classes",
        )
    return logits


class _Tracer(fx.Tracer):
    """Keeps layers that only make noise while training (DropPath and its kin) as modules.

    Traced through in eval mode they would vanish, and a tail trained later would go without.
    """

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        plain = not any(True for _ in m.children()) and not m.state_dict()
        if plain and "drop" in type(m).__name__.lower():
            return True
        return super().is_leaf_module(m, module_qualified_name)


def _graph(model: nn.Module, batch: torch.Tensor) -> tuple[fx.GraphModule, str]:
    try:
        tracer = _Tracer()
        graph = tracer.trace(model)
        if sum(n.op == "placeholder" for n in graph.nodes) > 1:
            raise TypeError("forward has further arguments, whose defaults symbols would replace")
        return fx.GraphModule(tracer.root, graph), "fx"
    except Exception as symbolic:  # the tracer runs the user's code, so anything can come
        try:
            return _exported(model, batch), "export"
        except Exception as error:
            raise ExportError(
                "the model cannot be traced, its control flow depends on its input: "
                f"{blame(symbolic)}",
                "rewrite that line without looking at values (torch.where, a fixed loop)",
            ) from error


def _exported(model: nn.Module, batch: torch.Tensor) -> fx.GraphModule:
    """Trace with `torch.export` and flatten the calling convention to one tensor in and out."""
    batch_dim = {0: torch.export.Dim("batch", min=1, max=1 << 16)}
    with quiet():  # a failing export prints its graph; its exception says enough
        program = torch.export.export(model, (batch,), dynamic_shapes=(batch_dim,), strict=False)
    source = program.module()
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in source.graph.nodes:
        if node.op == "output":
            graph.output(copied[_only_leaf(node.args)])
        elif not (node.op == "call_module" and "guards" in str(node.target)):
            copied[node] = graph.node_copy(node, lambda n: copied[n])
    return fx.GraphModule(source, graph)


def _only_leaf(args: Any) -> fx.Node:
    while isinstance(args, (tuple, list)):
        if len(args) != 1:
            raise ValueError("the model returns more than one tensor")
        args = args[0]
    assert isinstance(args, fx.Node)
    return args
