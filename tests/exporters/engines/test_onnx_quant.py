"""Integer and float ONNX: parity, exact scales, islands, weight storage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from hypothesis.extra.numpy import arrays  # noqa: E402
from onnx import numpy_helper  # noqa: E402
from torch import nn  # noqa: E402

from edge_kit.errors import ExportError  # noqa: E402
from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.engines.islands import assert_all_int8, float_islands  # noqa: E402
from exporters.engines.onnx_export import export_end_float, export_full, export_tail  # noqa: E402
from exporters.engines.onnx_quant import SCHEMES, export_end_onnx  # noqa: E402
from exporters.engines.saturation import paired_bound  # noqa: E402
from exporters.engines.weights import compress_weights  # noqa: E402
from exporters.graph.halves import EndModel, Halves  # noqa: E402
from tests.support.tiny_halves import (  # noqa: E402
    CHANNELS,
    CLASSES,
    PER_CHANNEL,
    SIZE,
    Full,
    batch,
    photos,
    trained,
)

pytestmark = pytest.mark.export

PIXELS, LABELS = photos(96, seed=3)
CALIBRATION, _ = photos(48, seed=4)


def float_codes(halves: Halves) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        features, logits = halves.end(batch(PIXELS))
    codes = np.rint(features.numpy() / halves.end.feature_scale)
    return np.clip(codes, -128, 127), logits.numpy()


@pytest.mark.parametrize("normalization", [(), PER_CHANNEL], ids=["uniform", "per-channel"])
@pytest.mark.parametrize(
    ("arch", "dtype", "shift"), [("x86_64", "uint8", 0), ("aarch64", "int8", 128)]
)
def test_int8_end_model_agrees_with_float_twin(tmp_path, normalization, arch, dtype, shift):
    halves = trained(*normalization)
    codes, logits = float_codes(halves)
    end = export_end_onnx(halves.end, CALIBRATION, tmp_path / f"{arch}.onnx", arch=arch)
    given = end(PIXELS)
    assert given["features"].dtype == np.int8
    assert given["logits"].dtype == np.float32
    off = np.abs(given["features"] - codes)
    assert (off == 0).mean() > 0.85
    assert off.max() <= 4
    assert (given["logits"].argmax(1) == logits.argmax(1)).mean() >= 0.97

    (image,) = end.entry.inputs
    assert (image.dtype, image.layout, image.shape) == (dtype, "NCHW", (3, *SIZE))
    if not normalization:
        assert (image.scale, image.zero_point) == (1 / 128, 127 - shift)
    features, out = end.entry.outputs
    assert features == TensorSpec("features", (CHANNELS, 8, 8), "NCHW", "int8", 0.25, 0)
    assert out == TensorSpec("logits", (CLASSES,), "NC", "float32")
    assert end.entry.requires == {"onnx_ir": 8, "opset": 17}
    assert end.entry.path == f"end/{arch}.onnx"
    assert end.entry.size == (tmp_path / f"{arch}.onnx").stat().st_size


def test_files_of_both_architectures_give_equal_outputs(tmp_path):
    end = trained(*PER_CHANNEL).end
    one, other = (
        export_end_onnx(end, CALIBRATION, tmp_path / f"{arch}.onnx", arch=arch)(PIXELS)
        for arch in ("x86_64", "aarch64")
    )
    for name in ("features", "logits"):
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_feature_quantizer_holds_announced_scale(tmp_path, scheme):
    path = tmp_path / "end.onnx"
    export_end_onnx(
        trained().end, CALIBRATION, path, arch="x86_64", scheme=scheme, feature_scale=0.3
    )
    model = onnx.load(path)
    constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    (maker,) = [n for n in model.graph.node if "features" in n.output]
    assert maker.op_type == "QuantizeLinear"
    assert constants[maker.input[1]] == np.float32(0.3)
    assert constants[maker.input[2]] == 0
    assert constants[maker.input[2]].dtype == np.int8


def neighbour_sums(weights: np.ndarray) -> int:
    """Largest sum of two neighbours of one sign along the reduction, in either packing order."""
    worst = 0
    for order in (weights, np.moveaxis(weights, 1, -1)):
        rows = order.reshape(len(weights), -1).astype(int)
        rows = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2))).reshape(len(weights), -1, 2)
        for sign in (rows, -rows):
            worst = max(worst, int(np.maximum(sign, 0).sum(2).max()))
    return worst


def weights_of(path: Path) -> list[np.ndarray]:
    constants = [numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer]
    return [w for w in constants if w.dtype == np.int8 and w.ndim in (2, 4)]


def test_x86_weights_stay_below_int16_saturation(tmp_path):
    end = trained().end
    export_end_onnx(end, CALIBRATION, tmp_path / "p.onnx", arch="x86_64")
    export_end_onnx(end, CALIBRATION, tmp_path / "u.onnx", arch="x86_64", scheme="U8S8")
    paired, plain = weights_of(tmp_path / "p.onnx"), weights_of(tmp_path / "u.onnx")
    dense = [w for w in paired if w.shape[1] > 1]
    assert len(dense) == 9
    assert max(neighbour_sums(w) for w in dense) <= 128  # 255 * 128 < 2 ** 15
    assert max(neighbour_sums(w) for w in plain) > 128
    (depthwise,) = [w for w in paired if w.shape[1] == 1]
    assert np.abs(depthwise.astype(int)).max() == 127


@settings(max_examples=100, deadline=None)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.just(3), st.just(3)),
        elements=st.floats(-8, 8, width=32),
    )
)
def test_paired_bound_holds_after_rounding(weights):
    bound = np.maximum(paired_bound(weights), 1e-6)
    codes = np.rint(weights / (bound[:, None, None, None] / 127))
    assert np.abs(codes).max() <= 127
    assert neighbour_sums(codes) <= 128


def test_features_beyond_int8_saturate(tmp_path):
    halves = trained()
    end = export_end_onnx(
        halves.end, CALIBRATION, tmp_path / "e.onnx", arch="x86_64", feature_scale=0.01
    )
    with torch.no_grad():
        features, _ = halves.end(batch(PIXELS))
    given = end(PIXELS)["features"]
    clear = np.abs(features.numpy()) > 2.0
    assert clear.any()
    assert (given[clear] == np.where(features.numpy()[clear] > 0, 127, -128)).all()


class Mean(nn.Module):
    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.fc = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x):
        return self.fc((x * torch.sigmoid(x).cumsum(1)).mean((2, 3)))


def test_float_island_is_refused_by_name(tmp_path):
    end = trained().end
    odd = EndModel(end.normalize, end.trunk, end.encode, Mean(end.head), 0.25).eval()
    with pytest.raises(ExportError, match=r"would compute in float: .*CumSum"):
        export_end_onnx(odd, CALIBRATION, tmp_path / "odd.onnx", arch="x86_64")


def test_float_model_is_reported_as_islands(tmp_path):
    twin = export_end_float(trained().end, tmp_path / "twin.onnx", size=SIZE)
    assert any(name.startswith(("Conv", "FusedConv")) for name in float_islands(twin.source))
    with pytest.raises(ExportError, match="more; cut before the layer"):
        assert_all_int8(twin.source)


def test_unknown_architecture_or_no_photos_is_refused(tmp_path):
    end = trained().end
    with pytest.raises(ExportError, match="'mips' is not one of x86_64, aarch64"):
        export_end_onnx(end, CALIBRATION, tmp_path / "e.onnx", arch="mips")
    with pytest.raises(ExportError, match="no calibration photos"):
        export_end_onnx(end, CALIBRATION[:0], tmp_path / "e.onnx", arch="x86_64")


def test_float_twin_equals_torch(tmp_path):
    halves = trained(*PER_CHANNEL)
    twin = export_end_float(halves.end, tmp_path / "twin.onnx", size=SIZE)
    with torch.no_grad():
        features, logits = halves.end(batch(PIXELS))
    given = twin(PIXELS)
    np.testing.assert_allclose(given["features"], features.numpy(), atol=1e-4)
    # A feature on the edge between two levels may round either way.
    assert (np.abs(given["logits"] - logits.numpy()).max(1) < 1e-3).mean() > 0.95


@pytest.mark.parametrize(("weights", "loss"), [("fp32", 1e-5), ("fp16", 2e-3), ("int8", 0.05)])
def test_tail_takes_int8_features_in_any_batch(tmp_path, weights, loss):
    halves = trained()
    spec = TensorSpec("features", (CHANNELS, 8, 8), "NCHW", "int8", 0.25, 0)
    codes, _ = float_codes(halves)
    with torch.no_grad():
        expected = halves.cloud(torch.from_numpy(codes.astype(np.float32)) * 0.25).numpy()
    tail = export_tail(halves.cloud, spec, tmp_path / "tail.onnx", weights=weights)
    given = tail(codes.astype(np.int8))["logits"]
    assert np.abs(given - expected).max() <= loss * np.abs(expected).max()
    one = tail(codes[:1].astype(np.int8))["logits"]
    np.testing.assert_allclose(one, given[:1], atol=1e-4)
    assert (tail.entry.role, tail.entry.path) == ("tail", "cloud/tail.onnx")
    assert tail.entry.inputs == (spec,)


def test_tail_with_nhwc_features_is_refused(tmp_path):
    spec = TensorSpec("features", (8, 8, CHANNELS), "NHWC", "int8", 0.25, 0)
    with pytest.raises(ExportError, match="int8 NCHW"):
        export_tail(trained().cloud, spec, tmp_path / "tail.onnx")


def test_full_model_on_raw_pixels_equals_torch(tmp_path):
    halves = trained()
    model = Full(halves.end.normalize, halves.end.trunk, halves.cloud.tail).eval()
    full = export_full(model, tmp_path / "full.onnx", size=SIZE)
    with torch.no_grad():
        expected = model(batch(PIXELS)).numpy()
    np.testing.assert_allclose(full(PIXELS)["logits"], expected, atol=1e-4)
    assert full.entry.cut is None
    assert full.entry.inputs[0].dtype == "float32"


def test_compressed_weights_make_smaller_file(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AvgPool2d(30), nn.Flatten())
    model.append(nn.Linear(32, 256))
    sizes = {}
    for storage in ("fp32", "fp16", "int8"):
        full = export_full(model, tmp_path / f"{storage}.onnx", size=SIZE, weights=storage)
        stored = onnx.load(full.source).graph.initializer
        kinds = {i.data_type for i in stored if not i.name.endswith("_scale") and len(i.dims) > 1}
        sizes[storage] = full.entry.size
        want = {"fp32": "FLOAT", "fp16": "FLOAT16", "int8": "INT8"}[storage]
        assert kinds == {getattr(onnx.TensorProto, want)}
    assert sizes["int8"] < sizes["fp16"] < sizes["fp32"]


@pytest.mark.parametrize("storage", ["fp16", "int8"])
def test_compressed_weights_are_unfolded_at_load(tmp_path, storage):
    """Whatever is not folded at load is computed again at every run."""
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AvgPool2d(30), nn.Flatten())
    model.append(nn.Linear(32, 256))
    full = export_full(model, tmp_path / "full.onnx", size=SIZE, weights=storage)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    ort.InferenceSession(full.source, options, providers=["CPUExecutionProvider"])
    loaded = onnx.load(tmp_path / "loaded.onnx").graph
    kinds = {n.op_type for n in loaded.node}
    assert not kinds & {"Cast", "Mul", "DequantizeLinear"}
    assert {i.data_type for i in loaded.initializer if len(i.dims) > 1} == {onnx.TensorProto.FLOAT}


def test_unknown_weight_storage_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'int4'"):
        compress_weights(Path(tmp_path) / "x.onnx", "int4")


def test_operation_torch_cannot_export_is_named(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x).abs().flatten(1)

    with pytest.raises(ExportError, match="torch cannot export Odd to ONNX"):
        export_full(Odd(), tmp_path / "odd.onnx", size=SIZE)
