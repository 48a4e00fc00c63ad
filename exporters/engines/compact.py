"""Make a quantized ONNX file small: on a narrow trunk, names and zeros outweigh the weights."""

from __future__ import annotations

import itertools

import onnx

__all__ = ["compact"]


def compact(model: onnx.ModelProto) -> None:
    """Shorten inner names, share equal constants and drop what only people read, in place."""
    graph = model.graph
    _share_constants(graph)
    keep = {v.name for v in itertools.chain(graph.input, graph.output)}
    names: dict[str, str] = {"": ""}
    fresh = (_base36(k) for k in itertools.count())

    def short(name: str) -> str:
        if name in keep:
            return name
        if name not in names:
            names[name] = next(n for n in fresh if n not in keep)
        return names[name]

    for node in graph.node:
        node.input[:] = [short(name) for name in node.input]
        node.output[:] = [short(name) for name in node.output]
        node.ClearField("name")
        node.ClearField("doc_string")
        del node.metadata_props[:]
    for initializer in graph.initializer:
        initializer.name = short(initializer.name)
        initializer.ClearField("doc_string")
    domains = {node.domain for node in graph.node}
    opsets = [o for o in model.opset_import if o.domain in domains]
    del model.opset_import[:]
    model.opset_import.extend(opsets)
    del graph.value_info[:]
    del graph.metadata_props[:]
    graph.ClearField("doc_string")
    graph.name = "end"
    model.ClearField("doc_string")


def _share_constants(graph: onnx.GraphProto) -> None:
    """Let every reader of equal bytes read one copy; drop constants that nobody reads."""
    first: dict[bytes, str] = {}
    alias: dict[str, str] = {}
    for initializer in graph.initializer:
        content = onnx.TensorProto()
        content.CopyFrom(initializer)
        content.ClearField("name")
        key = content.SerializeToString(deterministic=True)
        alias[initializer.name] = first.setdefault(key, initializer.name)
    for node in graph.node:
        node.input[:] = [alias.get(name, name) for name in node.input]
    used = {name for node in graph.node for name in node.input}
    kept = [i for i in graph.initializer if i.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while True:
        number, digit = divmod(number, 36)
        text = digits[digit] + text
        if number == 0:
            return "t" + text
