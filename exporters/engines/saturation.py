"""Weight ranges that keep x86 kernels without VNNI from saturating.

Such kernels (AVX2, SSE4.1) multiply uint8 activations by int8 weights with PMADDUBSW, which adds
the products of two neighbours along the reduction in int16: 255 * (w0 + w1) must stay below 32768,
so two neighbours of one sign may sum to 128. Halving all weights (``reduce_range``) guarantees
that and costs a bit everywhere. Here each output channel gives up only what its own worst pair of
neighbours asks for, usually a fraction of a bit.

Depthwise kernels widen before they multiply and need nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

__all__ = ["paired_bound", "unsaturated_ranges"]


def unsaturated_ranges(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return onnxruntime's overrides, by weight, for every dense layer of a float model.

    Args:
        path: A float model whose convolutions hold their weights as constants.
    """
    graph = onnx.load(path).graph
    constants = {i.name: i for i in graph.initializer}
    overrides = {}
    for node in graph.node:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.input[1] not in constants:
            continue
        weight = numpy_helper.to_array(constants[node.input[1]])
        axis = _output_axis(node)
        if _depthwise(node, weight):
            continue
        overrides[node.input[1]] = [
            {"axis": axis, "rmin": np.float32(-bound), "rmax": np.float32(bound)}
            for bound in paired_bound(np.moveaxis(weight, axis, 0))
        ]
    return overrides


def paired_bound(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return, per output channel, the value that becomes 127.

    That is the largest weight or, where larger, the largest sum of two neighbours of one sign:
    after rounding such a sum is at most 128.

    Args:
        weight: (outputs, ...), the reduction in C order.

    Returns:
        (outputs,)
    """
    rows = weight.reshape(len(weight), -1)
    bound = np.abs(rows).max(axis=1)
    # A kernel may pack the weights channels first or channels last.
    for order in (rows, np.moveaxis(weight, 1, -1).reshape(len(weight), -1)):
        even = np.pad(order, ((0, 0), (0, order.shape[1] % 2)))
        for sign in (even, -even):
            pairs = np.maximum(sign, 0).reshape(len(weight), -1, 2).sum(axis=2)
            bound = np.maximum(bound, pairs.max(axis=1))
    return np.asarray(bound, dtype=np.float32)


def _depthwise(node: onnx.NodeProto, weight: NDArray[np.float32]) -> bool:
    groups = next((int(a.i) for a in node.attribute if a.name == "group"), 1)
    return groups > 1 and groups == len(weight) and weight.shape[1] == 1


def _output_axis(node: onnx.NodeProto) -> int:
    if node.op_type == "Conv":
        return 0
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return 0 if transposed else 1
