"""Weights stored in fewer bytes: equal outputs, one scale an output channel, small tensors kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

torch = pytest.importorskip("torch")

from onnx import helper, numpy_helper  # noqa: E402
from torch import nn  # noqa: E402

from exporters.engines.onnx_export import trace_to_onnx  # noqa: E402
from exporters.engines.weights import MIN_VALUES, STORAGE, compress_weights  # noqa: E402

pytestmark = pytest.mark.export

RANDOM = np.random.default_rng(0)


def rows(*shape: int) -> np.ndarray:
    """Weights whose rows, along axis 0, differ in size by orders of magnitude."""
    values = RANDOM.normal(size=shape) * 10.0 ** -(np.arange(shape[0]) % 4).reshape(
        -1, *[1] * (len(shape) - 1)
    )
    return values.astype(np.float32)


# Operation, attributes, weight, shape of the input, axis of the output channels.
LAYERS = {
    "conv": ("Conv", {}, rows(16, 4, 3, 3), (1, 4, 8, 8), 0),
    "depthwise": ("Conv", {"group": 32}, rows(32, 1, 3, 3), (1, 32, 8, 8), 0),
    "transposed": ("ConvTranspose", {}, rows(16, 4, 3, 3).swapaxes(0, 1), (1, 4, 5, 5), 1),
    "gemm": ("Gemm", {}, rows(20, 16).T.copy(), (64, 16), 1),
    "gemm-transposed": ("Gemm", {"transB": 1}, rows(20, 16), (64, 16), 0),
    "matmul": ("MatMul", {}, rows(20, 16).T.copy(), (64, 16), 1),
}


def write(path: Path, kind: str) -> np.ndarray:
    """Write a model of one layer; return an input for it."""
    op, attributes, weight, shape, _ = LAYERS[kind]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"], **attributes)],
        "g",
        [value("x", onnx.TensorProto.FLOAT, shape)],
        [value("y", onnx.TensorProto.FLOAT, [f"d{k}" for k in range(len(shape))])],
        [numpy_helper.from_array(np.ascontiguousarray(weight), "w")],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def run(path: Path, x: np.ndarray) -> np.ndarray:
    return ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def constants(path: Path) -> dict[str, np.ndarray]:
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("kind", sorted(LAYERS))
@pytest.mark.parametrize(("storage", "loss"), [("fp16", 1e-3), ("int8", 2e-2)])
def test_each_output_channel_keeps_its_values(tmp_path, kind, storage, loss):
    """Per channel, so that rows a thousand times smaller than others are as exact as those."""
    path = tmp_path / "m.onnx"
    x = write(path, kind)
    before = run(path, x)
    compress_weights(path, storage)
    after = run(path, x)
    others = tuple(k for k in range(before.ndim) if k != 1)
    off = np.abs(after - before).max(axis=others) / np.abs(before).max(axis=others)
    assert off.max() < loss


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_int8_scale_lies_along_output_channels_and_rounds_to_nearest(tmp_path, kind):
    path, (_, _, weight, _, axis) = tmp_path / "m.onnx", LAYERS[kind]
    write(path, kind)
    compress_weights(path, "int8")
    stored = constants(path)
    codes, scale = stored["w_int8"], stored["w_scale"]
    assert codes.dtype == np.int8
    assert scale.shape == tuple(n if k == axis else 1 for k, n in enumerate(weight.shape))
    largest = np.abs(weight).max(axis=tuple(k for k in range(weight.ndim) if k != axis))
    np.testing.assert_allclose(scale.ravel(), largest / 127, rtol=1e-6)
    assert (np.abs(codes * scale - weight) <= scale * 0.5001).all()


def test_fp32_leaves_file_byte_for_byte(tmp_path):
    write(tmp_path / "m.onnx", "conv")
    before = (tmp_path / "m.onnx").read_bytes()
    compress_weights(tmp_path / "m.onnx", "fp32")
    assert (tmp_path / "m.onnx").read_bytes() == before


@pytest.mark.parametrize("storage", [s for s in STORAGE if s != "fp32"])
def test_biases_and_small_tensors_stay_float32(tmp_path, storage):
    path = tmp_path / "m.onnx"
    dense = nn.Sequential(nn.Linear(8, 512), nn.Linear(512, 2))
    trace_to_onnx(dense, torch.zeros(1, 8), path, outputs=("y",))
    compress_weights(path, storage)
    kept = constants(path)
    assert kept["0.bias"].dtype == kept["1.bias"].dtype == np.float32
    assert not {"0.weight", "1.weight"} & set(kept)
    small = nn.Linear(3, MIN_VALUES // 4)
    trace_to_onnx(small, torch.zeros(1, 3), path, outputs=("y",))
    compress_weights(path, storage)
    assert {v.dtype for v in constants(path).values()} == {np.dtype(np.float32)}


def test_fp16_clips_weights_beyond_its_range(tmp_path):
    path = tmp_path / "m.onnx"
    write(path, "matmul")
    model = onnx.load(path)
    weight = LAYERS["matmul"][2].copy()
    weight[0, 0], weight[1, 0] = 1e6, -1e6
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    onnx.save(model, path)
    compress_weights(path, "fp16")
    stored = constants(path)["w_fp16"]
    assert (stored[0, 0], stored[1, 0]) == (65504, -65504)


def test_int8_row_of_zeros_stays_zero(tmp_path):
    path = tmp_path / "m.onnx"
    x = write(path, "gemm-transposed")
    model = onnx.load(path)
    weight = LAYERS["gemm-transposed"][2].copy()
    weight[3] = 0
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    onnx.save(model, path)
    compress_weights(path, "int8")
    out = run(path, x)
    assert np.isfinite(out).all()
    assert (out[:, 3] == 0).all()
