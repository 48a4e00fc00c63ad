"""Integer TFLite: parity, exact scales, both runtimes, islands."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("litert_torch")

from torch import nn  # noqa: E402

from edge_kit.engines.tflite import TfliteEngine  # noqa: E402
from edge_kit.errors import ExportError  # noqa: E402
from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.engines.exported import Exported  # noqa: E402
from exporters.engines.islands import float_islands  # noqa: E402
from exporters.engines.onnx_quant import export_end_onnx  # noqa: E402
from exporters.engines.tflite_export import export_end_tflite  # noqa: E402
from exporters.graph.halves import EndModel  # noqa: E402
from exporters.judge.gates import tflite_agreement  # noqa: E402
from exporters.judge.tflite_loads import tflite_loads  # noqa: E402
from tests.support.export.tiny_halves import (  # noqa: E402
    CHANNELS,
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

pytestmark = [pytest.mark.export, pytest.mark.slow]

PIXELS, LABELS = photos(96, seed=3)
CALIBRATION, _ = photos(32, seed=4)


@pytest.fixture(scope="module")
def tflite(tmp_path_factory) -> Exported:
    path = tmp_path_factory.mktemp("tflite") / "end.tflite"
    return export_end_tflite(trained().end, CALIBRATION, path)


@pytest.fixture(scope="module")
def per_channel(tmp_path_factory) -> Exported:
    path = tmp_path_factory.mktemp("tflite") / "per-channel.tflite"
    return export_end_tflite(trained(*PER_CHANNEL).end, CALIBRATION, path, feature_scale=0.3)


def check_parity(file: Exported, end: EndModel, scale: float) -> None:
    with torch.no_grad():
        features, logits = end(batch(PIXELS))
    codes = np.clip(np.rint(features.numpy() / scale), -128, 127)
    given = file(PIXELS)
    assert given["features"].dtype == np.int8
    off = np.abs(given["features"] - codes)
    assert (off == 0).mean() > 0.85
    assert off.max() <= 4
    assert (given["logits"].argmax(1) == logits.numpy().argmax(1)).mean() >= 0.97


def test_tflite_end_model_agrees_with_float_twin(tflite):
    check_parity(tflite, trained().end, 0.25)
    (image,) = tflite.entry.inputs
    assert image == TensorSpec("image", (*SIZE, 3), "NHWC", "int8", 1 / 128, -1)
    features, logits = tflite.entry.outputs
    assert features == TensorSpec("features", (8, 8, CHANNELS), "NHWC", "int8", 0.25, 0)
    assert (logits.name, logits.layout, logits.dtype) == ("logits", "NC", "int8")
    assert tflite.entry.path == "end/end.tflite"


def test_tflite_with_per_channel_normalization_agrees_with_float_twin(per_channel):
    check_parity(per_channel, trained(*PER_CHANNEL).end, 0.3)
    (image,) = per_channel.entry.inputs
    assert (image.scale, image.zero_point) == (1.0, -128)
    assert per_channel.entry.outputs[0].scale == float(np.float32(0.3))


def test_tflite_accuracy_on_blobs_equals_float_accuracy(tflite):
    with torch.no_grad():
        _, logits = trained().end(batch(PIXELS))
    right = float((logits.numpy().argmax(1) == LABELS).mean())
    assert right > 0.9
    assert float((tflite(PIXELS)["logits"].argmax(1) == LABELS).mean()) >= right - 0.02


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_tflite_of_each_block_agrees_with_float_model(tmp_path, kind):
    end, path = block_end(kind), tmp_path / "end.tflite"
    with torch.no_grad():
        features, logits = (x.numpy() for x in end(batch(PIXELS[:32])))
    given = export_end_tflite(end, CALIBRATION, path)(PIXELS[:32])
    off = np.abs(given["features"] - np.clip(np.rint(features / 0.125), -128, 127))
    assert (off <= 1).mean() > 0.97
    assert off.max() <= 4
    assert np.abs(given["logits"] - logits).max() < 0.12 * np.abs(logits).max()
    assert float_islands(path) == []


@pytest.mark.parametrize("normalization", [((127.0,) * 3, (128.0,) * 3), PER_CHANNEL])
def test_tflite_features_of_all_grey_levels_are_within_one_step(tmp_path, normalization):
    end, picture = levels_end(*normalization), levels()
    file = export_end_tflite(end, picture, tmp_path / "e.tflite", feature_scale=0.03)
    expected = np.rint(end.normalize(batch(picture)).numpy() / np.float32(0.03))
    off = np.abs(file(picture)["features"] - np.clip(expected, -128, 127))
    assert off.max() <= 1


def test_tflite_file_states_the_announced_quantization(tflite):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    runner = interpreter.Interpreter(model_path=str(tflite.source)).get_signature_runner()
    details = {**runner.get_input_details(), **runner.get_output_details()}
    for spec in (*tflite.entry.inputs, *tflite.entry.outputs):
        scale, zero_point = details[spec.name]["quantization"]
        assert (float(scale), int(zero_point)) == (spec.scale, spec.zero_point)
        assert np.dtype(details[spec.name]["dtype"]).name == spec.dtype == "int8"
        assert tuple(details[spec.name]["shape"]) == (1, *spec.shape)


def test_tflite_requirements_list_schema_and_operators(tflite):
    needs = tflite.entry.requires
    assert needs["tflite_schema"] == 3
    assert {"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED"} <= set(needs["ops"])
    assert all(version >= 1 for version in needs["ops"].values())


def test_tflite_decisions_agree_with_onnx(tflite, tmp_path):
    onnx = export_end_onnx(trained().end, CALIBRATION, tmp_path / "e.onnx", arch="x86_64")
    gate = tflite_agreement(tflite, onnx, PIXELS)
    assert gate.ok, gate.sentence


def test_tflite_file_runs_in_both_runtimes(tflite):
    gates = tflite_loads(tflite)
    assert [g.name.split()[0] for g in gates] == ["tflite-runtime", "LiteRT"]
    assert not [g.sentence for g in gates if g.ok is False]
    assert any(g.ok for g in gates)


def test_tflite_file_runs_in_device_engine(tflite):
    engine = TfliteEngine(tflite.source, tflite.entry, threads=1)
    out = engine.run({"image": (PIXELS[:8] ^ np.uint8(0x80)).view(np.int8)})
    engine.close()
    expected = tflite(PIXELS[:8])
    off = np.abs(out["features"].transpose(0, 3, 1, 2).astype(int) - expected["features"])
    assert off.max() <= 1  # two runtimes may round apart
    assert (out["logits"].argmax(1) == expected["logits"].argmax(1)).all()


def test_float_island_is_refused_by_name(tmp_path):
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(CHANNELS, 4)

        def forward(self, x):
            return self.fc(torch.sin(x).mean((2, 3)))

    end = trained().end
    odd = EndModel(end.normalize, end.trunk, end.encode, Head(), 0.25).eval()
    path = tmp_path / "odd.tflite"
    sentence = r"odd.tflite would compute in float: .*Head.*\(float32\)"
    with pytest.raises(ExportError, match=sentence):
        export_end_tflite(odd, CALIBRATION, path)
    assert float_islands(path)
