"""Load any trained classifier and turn it into a graph that can be cut."""

from __future__ import annotations

import importlib
import pickle
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn

from edge_kit.errors import ExportError, UsageError
from exporters.macs import Recording, record
from exporters.passes import fix_pools, fold_sizes

__all__ = ["Traced", "load_model", "load_weights", "trace"]

PARITY = 1e-4
FEW = 3


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


def load_model(spec: str, weights: Path | None = None) -> nn.Module:
    """Import and build the classifier that `spec` names, in eval mode.

    Args:
        spec: ``package.module:factory``; the attribute is a callable without arguments that
            returns a `torch.nn.Module`, or such a module. The current directory is importable.
        weights: A state dict to load into it.

    Raises:
        UsageError: `spec` is malformed, or names what does not exist or is no model.
        ExportError: The user's own code fails, or the weights do not fit.
    """
    module_name, colon, attribute = spec.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(
            f"{spec!r} is not package.module:factory",
            "for example mypackage.models:build",
        )
    made = _build(_import(module_name), spec, attribute)
    if not isinstance(made, nn.Module):
        raise UsageError(
            f"{spec} gives a {type(made).__name__}, which is no torch.nn.Module",
            "the factory must return the model itself",
        )
    if weights is not None:
        load_weights(made, weights)
    return made.eval().requires_grad_(False)


def _import(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(missing + "."):
            raise UsageError(
                f"there is no module {missing!r} (looked in {here} and the installed packages)",
                "run from the directory that holds it, or install its package",
            ) from None
        raise ExportError(
            f"{name} needs {missing!r}, which is not installed", "install it in this environment"
        ) from None
    except Exception as error:
        raise ExportError(f"importing {name} fails: {_blame(error)}") from error


def _build(module: Any, spec: str, attribute: str) -> Any:
    made: Any = module
    for part in attribute.split("."):
        if not hasattr(made, part):
            public = [n for n in vars(module) if not n.startswith("_") and callable(made)]
            known = ", ".join(public[:8]) if public else ""
            raise UsageError(
                f"{module.__name__} has no {attribute!r}",
                f"it has: {known}" if known else "check the name after the colon",
            )
        made = getattr(made, part)
    if isinstance(made, nn.Module):
        return made
    if not callable(made):
        raise UsageError(f"{spec} is a {type(made).__name__}, neither a model nor a factory")
    try:
        return made()
    except Exception as error:
        raise ExportError(
            f"calling {spec} without arguments fails: {_blame(error)}",
            "write a small factory that takes none",
        ) from error


def _blame(error: BaseException) -> str:
    """Return type, message and the last line outside torch that the error passed."""
    frames = traceback.extract_tb(error.__traceback__)
    torch_home = str(Path(torch.__file__).parent)
    outside = [
        f
        for f in frames
        if not f.filename.startswith((torch_home, "<"))
        and f.filename != __file__
        and "importlib" not in f.filename
    ]
    where = f" ({outside[-1].filename}:{outside[-1].lineno}: {outside[-1].line})" if outside else ""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else 'no message'}{where}"


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a state dict into `model`; never runs code from the file.

    A dict that wraps it under ``state_dict`` or ``model`` is accepted, and so is the ``module.``
    prefix of data-parallel training.

    Raises:
        ExportError: The file is missing, damaged or holds other things than tensors, or its
            names or shapes do not fit the model.
    """
    state = _read_state(path)
    own = model.state_dict()
    if state and all(k.startswith("module.") for k in state):
        state = {k.removeprefix("module."): v for k, v in state.items()}
    missing = [k for k in own if k not in state]
    surplus = [k for k in state if k not in own]
    if missing or surplus:
        parts = [f"lacks {_some(missing)}"] if missing else []
        parts += [f"has {_some(surplus)}, unknown to the model"] if surplus else []
        raise ExportError(
            f"{path} does not fit the model: it {' and '.join(parts)}",
            "give the weights of this very architecture",
        )
    wrong = [
        f"{k} is {tuple(v.shape)} in the file, {tuple(own[k].shape)} in the model"
        for k, v in state.items()
        if v.shape != own[k].shape
    ]
    if wrong:
        raise ExportError(
            f"{path} does not fit the model: {_some(wrong)}",
            "check the number of classes and the width that the factory builds",
        )
    model.load_state_dict(state)


def _some(items: list[str]) -> str:
    more = f" and {len(items) - FEW} more" if len(items) > FEW else ""
    return ", ".join(items[:FEW]) + more


def _read_state(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise ExportError(f"there are no weights at {path}", "check the path after --weights")
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "weights_only" in str(error).lower() or "Unsupported" in str(error):
            raise ExportError(
                f"{path} holds more than tensors, and loading it would run code",
                "save it again with torch.save(model.state_dict(), path)",
            ) from None
        raise ExportError(f"{path} is no file of weights, or damaged") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise ExportError(
            f"{path} cannot be read as weights: {str(error).splitlines()[0] if str(error) else ''}",
            "it may be truncated: copy it again",
        ) from None
    for key in ("state_dict", "model"):
        if isinstance(data, Mapping) and isinstance(data.get(key), Mapping):
            data = data[key]
            break
    if not isinstance(data, Mapping) or not all(isinstance(v, torch.Tensor) for v in data.values()):
        raise ExportError(
            f"{path} holds no state dict", "save it with torch.save(model.state_dict(), path)"
        )
    return dict(data)


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
            recording = record(module, two[:1])
            difference = float((module(two) - expected).abs().max())
            module(three)
        except Exception as error:
            raise ExportError(
                f"the traced model does not run: {_blame(error)}",
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
            f"the model fails on an input of {size}: {_blame(error)}", "check --size"
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
        return fx.GraphModule(tracer.root, graph), "fx"
    except Exception as symbolic:  # the tracer runs the user's code, so anything can come
        try:
            return _exported(model, batch), "export"
        except Exception as error:
            raise ExportError(
                "the model cannot be traced, its control flow depends on its input: "
                f"{_blame(symbolic)}",
                "rewrite that line without looking at values (torch.where, a fixed loop)",
            ) from error


def _exported(model: nn.Module, batch: torch.Tensor) -> fx.GraphModule:
    """Trace with `torch.export` and flatten the calling convention to one tensor in and out."""
    batch_dim = {0: torch.export.Dim("batch", min=1, max=1 << 16)}
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
