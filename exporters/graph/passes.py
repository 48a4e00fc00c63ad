"""Rewrites that a traced graph needs before it can be cut and quantized; each keeps its values."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F  # noqa: N812 (the name that the field uses)

from exporters.graph.macs import Recording

__all__ = ["BATCH", "fix_pools", "fold_sizes", "spell_out"]

BATCH = "edge_kit_batch"  # meta key of the one node that holds the batch size


def fold_sizes(module: fx.GraphModule, two: Recording, three: Recording) -> None:
    """Replace sizes that the graph computes by constants, and the batch size by one node.

    ``x.view(x.size(0), -1)`` would otherwise tie the last layer to the first tensor, and no
    single tensor would cross any cut.

    Args:
        module: Rewritten in place.
        two: A run with a batch of 2.
        three: A run with a batch of 3.
    """
    graph = module.graph
    image = next(n for n in graph.nodes if n.op == "placeholder")
    with graph.inserting_after(image):
        batch = graph.call_method("size", (image, 0))
    batch.meta[BATCH] = True

    def fold(a: Any, b: Any) -> Any:
        if isinstance(a, int):
            return a if a == b else batch if (a, b) == (2, 3) else None
        parts = tuple(fold(x, y) for x, y in zip(a, b, strict=True))
        return None if None in parts else parts

    folded = []
    for node in graph.nodes:
        a, b = two.values.get(node.name), three.values.get(node.name)
        if node.op not in ("call_function", "call_method") or a is None:
            continue
        if node.name in two.tensors or node is batch:
            continue
        value = fold(a, b)
        if value is not None:
            _replace(node, value)
            folded.append(node)
    for node in reversed(folded):
        if not node.users:
            graph.erase_node(node)
    if not batch.users:
        graph.erase_node(batch)
    module.recompile()


def _replace(node: fx.Node, value: Any) -> None:
    def swap(n: fx.Node) -> Any:
        return value if n is node else n

    for user in list(node.users):
        user.args = fx.map_arg(user.args, swap)
        user.kwargs = fx.map_arg(user.kwargs, swap)


def fix_pools(module: fx.GraphModule, recording: Recording) -> None:
    """Write adaptive average pooling and spatial means as pooling with a fixed kernel.

    The others leave float islands in both int8 engines.

    Args:
        module: Rewritten in place.
        recording: A run of it, for the shapes.
    """
    graph = module.graph
    for node in list(graph.nodes):
        found = _pool(module, node)
        shape = recording.values.get(node.args[0].name) if found else None
        if found is None or shape is None or len(shape) != 4:
            continue
        (rows, columns), flat = found
        if shape[2] % rows or shape[3] % columns:
            continue
        kernel = (shape[2] // rows, shape[3] // columns)
        with graph.inserting_before(node):
            pooled = graph.call_function(F.avg_pool2d, (node.args[0], kernel))
            pooled.meta = dict(node.meta)
            if flat:
                pooled = graph.call_function(torch.flatten, (pooled, 1))
                pooled.meta = dict(node.meta)
        node.replace_all_uses_with(pooled)
        graph.erase_node(node)
    module.recompile()


def _pool(module: fx.GraphModule, node: fx.Node) -> tuple[tuple[int, int], bool] | None:
    """Return the output size of an average over space, and whether its result is flat."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    size: Any = None
    if node.op == "call_module":
        layer = module.get_submodule(str(node.target))
        size = layer.output_size if isinstance(layer, nn.AdaptiveAvgPool2d) else None
    elif node.target in (F.adaptive_avg_pool2d, torch.ops.aten.adaptive_avg_pool2d.default):
        size = node.args[1] if len(node.args) > 1 else node.kwargs.get("output_size")
    elif node.target in ("mean", torch.mean, torch.ops.aten.mean.dim):
        return _spatial_mean(node)
    if isinstance(size, int):
        size = (size, size)
    if not isinstance(size, (tuple, list)) or not all(isinstance(s, int) for s in size):
        return None
    return (size[0], size[-1]), False


def spell_out(module: fx.GraphModule) -> None:
    """Write hard swish and hard sigmoid as sums, products and ReLU6, in place.

    onnxruntime quantizes those, and computes the activations themselves in float.
    """
    graph = module.graph
    for node in list(graph.nodes):
        kind = _hard(module, node)
        if kind is None:
            continue
        x = node.args[0]
        with graph.inserting_before(node):
            shifted = graph.call_function(torch.add, (x, 3.0))
            bounded = graph.call_function(F.relu6, (shifted,))
            made = gate = graph.call_function(torch.mul, (bounded, 1 / 6))
            if kind == "swish":
                made = graph.call_function(torch.mul, (x, gate))
        for new in (shifted, bounded, gate, made):
            new.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        graph.erase_node(node)
    module.recompile()


_HARD: dict[Any, str] = {
    nn.Hardswish: "swish",
    F.hardswish: "swish",
    torch.ops.aten.hardswish.default: "swish",
    torch.ops.aten.hardswish_.default: "swish",
    nn.Hardsigmoid: "sigmoid",
    F.hardsigmoid: "sigmoid",
    torch.ops.aten.hardsigmoid.default: "sigmoid",
    torch.ops.aten.hardsigmoid_.default: "sigmoid",
}


def _hard(module: fx.GraphModule, node: fx.Node) -> str | None:
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.op == "call_module":
        return _HARD.get(type(module.get_submodule(str(node.target))))
    return _HARD.get(node.target) if node.op == "call_function" else None


def _spatial_mean(node: fx.Node) -> tuple[tuple[int, int], bool] | None:
    dims: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if not isinstance(dims, (tuple, list)) or {d % 4 for d in dims} != {2, 3}:
        return None
    keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return (1, 1), not keep
