"""Assert that a quantized model computes in integers only.

In ONNX the question is put to onnxruntime: the graph that it makes of the QDQ file (saved after
its fusions) must compute on integers everywhere. Quantize and dequantize nodes alone may stand
between integers and floats. In TFLite every tensor must be int8, or int32 for biases and shapes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import onnx

from edge_kit.engines.onnx import open_session, session_options
from edge_kit.errors import ExportError

__all__ = ["assert_all_int8", "float_islands"]

HINT = (
    "cut before the layer that the name shows, or replace it by one that both engines quantize "
    "(ReLU6 or SiLU for GELU, BatchNorm for GroupNorm, avg_pool2d with a fixed kernel)"
)
MAX_NAMED = 5


def assert_all_int8(path: Path) -> None:
    """Check an ``.onnx`` or ``.tflite`` end model for float islands.

    Raises:
        ExportError: Something is computed in float; the message names it.
    """
    found = float_islands(path)
    if found:
        more = f" and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise ExportError(
            f"{path.name} would compute in float: {', '.join(found[:MAX_NAMED])}{more}", HINT
        )


def float_islands(path: Path) -> list[str]:
    """Return the operations (ONNX) or tensors (TFLite) that are not integers, for people."""
    return _tflite_islands(path) if path.suffix == ".tflite" else _onnx_islands(path)


def _onnx_islands(path: Path) -> list[str]:
    graph = _optimized(path).graph
    floats = {v.name for v in graph.input if v.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    islands = []
    for node in graph.node:
        if node.op_type == "DequantizeLinear":
            floats.update(node.output)
            continue
        if node.op_type == "QuantizeLinear" or not floats.intersection(node.input):
            continue
        floats.update(node.output)
        islands.append(f"{node.op_type} ({node.name or node.output[0]})")
    return islands


def _optimized(path: Path) -> onnx.ModelProto:
    from onnxruntime import GraphOptimizationLevel  # type: ignore[import-untyped]

    with tempfile.TemporaryDirectory(prefix="edge-kit-islands-") as work:
        out = Path(work) / "optimized.onnx"
        options = session_options(threads=1)
        # Layout changes, which come after this level, hold on one kind of CPU only.
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = os.fspath(out)
        open_session(path, options)
        return onnx.load(out)


def _tflite_islands(path: Path) -> list[str]:
    from ai_edge_litert import (  # type: ignore[import-untyped]
        schema_py_generated as schema,
    )

    kinds = {v: k for k, v in vars(schema.TensorType).items() if isinstance(v, int)}
    model = schema.Model.GetRootAs(path.read_bytes(), 0)
    islands = []
    for s in range(model.SubgraphsLength()):
        graph = model.Subgraphs(s)
        for t in range(graph.TensorsLength()):
            tensor = graph.Tensors(t)
            kind = kinds[tensor.Type()]
            if kind not in ("INT8", "INT32"):
                # The converter writes whole paths of Python classes; the last part says enough.
                name = tensor.Name().decode().rsplit("/", 1)[-1].removeprefix("torch.nn.modules.")
                islands.append(f"{name} ({kind.lower()})")
    return islands
