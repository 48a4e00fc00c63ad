"""The end model of tests/support/tiny.py as full int8 TFLite, built operator by operator.

``tiny_end.tflite`` is what `build` returns, kept because a board that runs the tests has no
converter. The schema comes with ai-edge-litert.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge_kit.bundle import Bundle, sha256_file
from edge_kit.bundle.split import EngineFile
from edge_kit.tensors import TensorSpec
from tests.support.tiny import FEATURES, SIZE, make_bundle, with_split, write_manifest

FILE = Path(__file__).parent / "data" / "tiny_end.tflite"

# The file quantizes its own input, so the manifest's scale is that of a pixel.
IMAGE = TensorSpec("image", (SIZE, SIZE, 3), "NHWC", "uint8", 1.0, 0)
FEATURES_NHWC = TensorSpec(
    "features", (4, 4, 3), "NHWC", "int8", FEATURES.scale, FEATURES.zero_point
)
LOGITS = TensorSpec("logits", (3,), "NC", "int8", 0.0625, -128)
_GAIN = 0.05


def entry(path: str, file: Path) -> EngineFile:
    return EngineFile(
        path,
        "end",
        "tflite",
        "any",
        sha256_file(file),
        file.stat().st_size,
        (IMAGE,),
        (FEATURES_NHWC, LOGITS),
        {"tflite_schema": 3},
    )


def make_bundle_with_both(root: Path, *, onnx_first: bool = True) -> Bundle:
    """tests/support/tiny.py's bundle with this file as a second end model."""
    bundle = make_bundle(root)
    copy = root / "end" / "int8.tflite"
    copy.write_bytes(FILE.read_bytes())
    ours = entry("end/int8.tflite", copy)
    old = bundle.split.end
    both = with_split(bundle, end=(*old, ours) if onnx_first else (ours, *old))
    return write_manifest(root, both.manifest)


def build() -> bytes:
    import flatbuffers
    from ai_edge_litert import schema_py_generated as s

    tensors: list = []
    buffers = [_buffer(s, b"")]
    codes: list = []
    operators: list = []

    def tensor(
        name: str, shape: tuple, kind: int, scale: float, zero: int, data: bytes = b""
    ) -> int:
        t = s.TensorT()
        t.name, t.shape, t.type, t.buffer = name, list(shape), kind, 0
        if scale:
            t.quantization = s.QuantizationParametersT()
            t.quantization.scale, t.quantization.zeroPoint = [scale], [zero]
        if data:
            t.buffer = len(buffers)
            buffers.append(_buffer(s, data))
        tensors.append(t)
        return len(tensors) - 1

    def operator(code: int, version: int, inputs: list, output: int, kind: int, options) -> None:
        entry = s.OperatorCodeT()
        entry.builtinCode = entry.deprecatedBuiltinCode = code
        entry.version = version
        codes.append(entry)
        op = s.OperatorT()
        op.opcodeIndex, op.inputs, op.outputs = len(codes) - 1, inputs, [output]
        op.builtinOptionsType, op.builtinOptions = kind, options
        operators.append(op)

    i8, u8, i32 = s.TensorType.INT8, s.TensorType.UINT8, s.TensorType.INT32
    op, kind = s.BuiltinOperator, s.BuiltinOptions
    fs, fz = FEATURES.scale, FEATURES.zero_point
    image = tensor("serving_default_image:0", (1, SIZE, SIZE, 3), u8, 1.0, 0)
    signed = tensor("signed", (1, SIZE, SIZE, 3), i8, 1.0, -128)
    pooled = tensor("pooled", (1, 4, 4, 3), i8, 1.0, -128)
    features = tensor("StatefulPartitionedCall:1", (1, 4, 4, 3), i8, fs, fz)
    axes = tensor("axes", (2,), i32, 0, 0, np.array([1, 2], np.int32).tobytes())
    mean = tensor("mean", (1, 3), i8, fs, fz)
    step = _GAIN / 127
    weights = tensor("w", (3, 3), i8, step, 0, (np.eye(3) * 127).astype(np.int8).tobytes())
    bias = tensor("b", (3,), i32, fs * step, 0, np.zeros(3, np.int32).tobytes())
    logits = tensor("StatefulPartitionedCall:0", (1, 3), i8, LOGITS.scale, LOGITS.zero_point)

    pool = s.Pool2DOptionsT()
    pool.padding = s.Padding.VALID
    pool.strideW = pool.strideH = pool.filterWidth = pool.filterHeight = 4
    reducer = s.ReducerOptionsT()
    reducer.keepDims = False
    dense = s.FullyConnectedOptionsT()
    operator(op.QUANTIZE, 1, [image], signed, kind.QuantizeOptions, s.QuantizeOptionsT())
    operator(op.AVERAGE_POOL_2D, 2, [signed], pooled, kind.Pool2DOptions, pool)
    operator(op.QUANTIZE, 2, [pooled], features, kind.QuantizeOptions, s.QuantizeOptionsT())
    operator(op.MEAN, 2, [features, axes], mean, kind.ReducerOptions, reducer)
    operator(
        op.FULLY_CONNECTED, 4, [mean, weights, bias], logits, kind.FullyConnectedOptions, dense
    )

    graph = s.SubGraphT()
    graph.tensors, graph.operators = tensors, operators
    graph.inputs, graph.outputs = [image], [logits, features]
    signature = s.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = "serving_default", 0
    signature.inputs = [_map(s, "image", image)]
    signature.outputs = [_map(s, "features", features), _map(s, "logits", logits)]
    model = s.ModelT()
    model.version, model.description = 3, "tiny"
    model.subgraphs, model.buffers = [graph], buffers
    model.operatorCodes, model.signatureDefs = codes, [signature]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _buffer(s, data: bytes):
    buffer = s.BufferT()
    buffer.data = list(data) or None
    return buffer


def _map(s, name: str, index: int):
    entry = s.TensorMapT()
    entry.name, entry.tensorIndex = name, index
    return entry


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_bytes(build())
