"""Store the weights of a float ONNX model in fewer bytes; it still computes in float32.

fp16 weights pass a Cast, int8 weights a Cast and a Mul by the scale of their output channel. Those
have constants only as inputs, so onnxruntime computes them once at load and then runs at the speed
of float weights. (It would not do so for a DequantizeLinear, which it keeps for its QDQ fusions.)
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

__all__ = ["STORAGE", "compress_weights"]

STORAGE: tuple[str, ...] = ("fp32", "fp16", "int8")
MIN_VALUES = 256  # smaller tensors (biases, scales) are not worth a node

# Which axis of a weight holds the output channels; others are quantized along axis 0.
_CHANNEL_AXIS = {"ConvTranspose": 1, "MatMul": 1}


def compress_weights(path: Path, storage: str) -> None:
    """Rewrite the model at `path` in place with its weights stored as `storage`.

    Args:
        path: A float ONNX model.
        storage: ``fp32`` leaves it alone, ``fp16`` halves it, ``int8`` quarters it (symmetric,
            one scale per output channel, weights only).
    """
    if storage == "fp32":
        return
    model = onnx.load(path)
    graph = model.graph
    consumers = {name: node for node in graph.node for name in node.input}
    nodes: list[onnx.NodeProto] = []
    for initializer in list(graph.initializer):
        values = numpy_helper.to_array(initializer)
        if values.dtype != np.float32 or values.size < MIN_VALUES or values.ndim < 2:
            continue
        name = initializer.name
        if name not in consumers:
            continue
        graph.initializer.remove(initializer)
        if storage == "fp16":
            stored, chain = _half(name, values)
        else:
            stored, chain = _int8(name, values, _axis(consumers[name]))
        graph.initializer.extend(stored)
        nodes.extend(chain)
    for node in reversed(nodes):
        graph.node.insert(0, node)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _axis(consumer: onnx.NodeProto) -> int:
    if consumer.op_type == "Gemm":
        transposed = any(a.name == "transB" and a.i for a in consumer.attribute)
        return 0 if transposed else 1
    return _CHANNEL_AXIS.get(consumer.op_type, 0)


def _half(
    name: str, values: NDArray[np.float32]
) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto]]:
    limit = np.finfo(np.float16).max
    half = np.clip(values, -limit, limit).astype(np.float16)
    stored = numpy_helper.from_array(half, name + "_fp16")
    return [stored], [_cast(stored.name, name)]


def _int8(
    name: str, values: NDArray[np.float32], axis: int
) -> tuple[list[onnx.TensorProto], list[onnx.NodeProto]]:
    others = tuple(k for k in range(values.ndim) if k != axis)
    bound = np.abs(values).max(axis=others, keepdims=True)
    scale = (np.maximum(bound, np.finfo(np.float32).tiny * 128) / 127).astype(np.float32)
    quantized = np.clip(np.rint(values / scale), -127, 127).astype(np.int8)
    stored = [
        numpy_helper.from_array(quantized, name + "_int8"),
        numpy_helper.from_array(scale, name + "_scale"),
    ]
    steps = name + "_steps"
    product = helper.make_node("Mul", [steps, stored[1].name], [name])
    return stored, [_cast(stored[0].name, steps), product]


def _cast(source: str, target: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], to=onnx.TensorProto.FLOAT)
