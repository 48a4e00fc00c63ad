"""Integer ONNX for both architectures: parity, exact scales, no float islands, no saturation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from onnx import numpy_helper  # noqa: E402
from torch import nn  # noqa: E402

from edge_kit.errors import ExportError  # noqa: E402
from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.engines import onnx_quant  # noqa: E402
from exporters.engines.islands import float_islands  # noqa: E402
from exporters.engines.onnx_export import export_end_float  # noqa: E402
from exporters.engines.onnx_quant import SCHEMES, export_end_onnx  # noqa: E402
from exporters.graph.halves import EndModel, Halves  # noqa: E402
from tests.exporters.engines.test_saturation import neighbour_sums  # noqa: E402
from tests.support.export.tiny_halves import (  # noqa: E402
    CHANNELS,
    CLASSES,
    PER_CHANNEL,
    SIZE,
    batch,
    block_end,
    levels,
    levels_end,
    photos,
    trained,
)
from tests.support.export.tiny_nets import BLOCKS  # noqa: E402

pytestmark = pytest.mark.export

PIXELS, LABELS = photos(96, seed=3)
CALIBRATION, _ = photos(48, seed=4)
UNIFORM = ((127.0,) * 3, (128.0,) * 3)


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


@pytest.mark.parametrize("arch", sorted(SCHEMES))
def test_int8_accuracy_on_blobs_equals_float_accuracy(tmp_path, arch):
    halves = trained()
    _, real = float_codes(halves)
    given = export_end_onnx(halves.end, CALIBRATION, tmp_path / "e.onnx", arch=arch)(PIXELS)
    right = [float((x.argmax(1) == LABELS).mean()) for x in (given["logits"], real)]
    assert right[1] > 0.9
    assert right[0] >= right[1] - 0.02


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_int8_end_model_of_each_block_agrees_with_float_twin(tmp_path, kind):
    end = block_end(kind)
    twin = export_end_float(end, tmp_path / "twin.onnx", size=SIZE)(PIXELS[:32])
    codes = np.clip(np.rint(twin["features"] / 0.125), -128, 127)
    for arch in SCHEMES:
        path = tmp_path / f"{arch}.onnx"
        given = export_end_onnx(end, CALIBRATION, path, arch=arch)(PIXELS[:32])
        off = np.abs(given["features"] - codes)
        assert (off <= 1).mean() > 0.97
        assert off.max() <= 4
        assert np.abs(given["logits"] - twin["logits"]).max() < 0.1 * np.abs(twin["logits"]).max()
        assert float_islands(path) == []


@pytest.mark.parametrize("arch", sorted(SCHEMES))
@pytest.mark.parametrize("normalization", [UNIFORM, PER_CHANNEL, ((-3.0,) * 3, (99.0,) * 3)])
def test_features_of_all_grey_levels_are_within_one_step(tmp_path, arch, normalization):
    end, picture = levels_end(*normalization), levels()
    file = export_end_onnx(end, picture, tmp_path / "e.onnx", arch=arch, feature_scale=0.03)
    expected = np.rint(end.normalize(batch(picture)).numpy() / np.float32(0.03))
    off = np.abs(file(picture)["features"] - np.clip(expected, -128, 127))
    assert off.max() <= 1
    assert (off == 0).mean() > 0.8


def test_files_of_both_architectures_give_equal_outputs(tmp_path):
    end = trained(*PER_CHANNEL).end
    one, other = (
        export_end_onnx(end, CALIBRATION, tmp_path / f"{arch}.onnx", arch=arch)(PIXELS)
        for arch in ("x86_64", "aarch64")
    )
    for name in ("features", "logits"):
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.parametrize("arch", sorted(SCHEMES))
def test_feature_quantizer_holds_announced_scale(tmp_path, arch):
    path = tmp_path / "end.onnx"
    export_end_onnx(trained().end, CALIBRATION, path, arch=arch, feature_scale=0.3)
    model = onnx.load(path)
    constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    (maker,) = [n for n in model.graph.node if "features" in n.output]
    assert maker.op_type == "QuantizeLinear"
    assert constants[maker.input[1]] == np.float32(0.3)
    assert constants[maker.input[2]] == 0
    assert constants[maker.input[2]].dtype == np.int8


@pytest.mark.parametrize(("arch", "zero_point"), [("x86_64", 127), ("aarch64", -1)])
def test_first_node_dequantizes_pixels_with_announced_scale(tmp_path, arch, zero_point):
    path = tmp_path / "e.onnx"
    file = export_end_onnx(trained().end, CALIBRATION, path, arch=arch)
    graph = onnx.load(path).graph
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    readers = [n for n in graph.node if "image" in n.input]
    assert {n.op_type for n in readers} == {"DequantizeLinear"}
    for reader in readers:
        assert constants[reader.input[1]] == np.float32(1 / 128)
        assert constants[reader.input[2]] == zero_point
    (image,) = file.entry.inputs
    assert (image.scale, image.zero_point) == (1 / 128, zero_point)


def test_scheme_is_noted_in_figures(tmp_path):
    path = tmp_path / "e.onnx"
    for arch, scheme in SCHEMES.items():
        file = export_end_onnx(trained().end, CALIBRATION, path, arch=arch)
        assert file.entry.figures == {"scheme": scheme}


def weights_of(path: Path) -> list[np.ndarray]:
    constants = [numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer]
    return [w for w in constants if w.dtype == np.int8 and w.ndim in (2, 4)]


def test_x86_weights_stay_below_int16_saturation(tmp_path, monkeypatch):
    """With every pixel at 255 the sums of two neighbours fit into int16, in either order."""
    end = trained().end
    export_end_onnx(end, CALIBRATION, tmp_path / "p.onnx", arch="x86_64")
    monkeypatch.setattr(onnx_quant, "unsaturated_ranges", lambda path: {})
    export_end_onnx(end, CALIBRATION, tmp_path / "u.onnx", arch="x86_64")
    paired, plain = weights_of(tmp_path / "p.onnx"), weights_of(tmp_path / "u.onnx")
    dense = [w for w in paired if w.shape[1] > 1]
    assert len(dense) == 9
    assert max(255 * neighbour_sums(w) for w in dense) < 2**15
    assert max(255 * neighbour_sums(w) for w in plain) >= 2**15
    (depthwise,) = [w for w in paired if w.shape[1] == 1]
    assert np.abs(depthwise.astype(int)).max() == 127


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


def test_failed_export_leaves_no_file(tmp_path):
    end = trained().end
    odd = EndModel(end.normalize, end.trunk, end.encode, Mean(end.head), 0.25).eval()
    with pytest.raises(ExportError):
        export_end_onnx(odd, CALIBRATION, tmp_path / "new" / "odd.onnx", arch="x86_64")
    assert not (tmp_path / "new").exists()
