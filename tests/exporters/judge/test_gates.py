"""Every gate passes a good export and fails a bad one, naming the figure."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from edge_kit.errors import GateError  # noqa: E402
from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.engines.exported import Exported  # noqa: E402
from exporters.engines.onnx_export import export_end_float, export_tail  # noqa: E402
from exporters.engines.onnx_quant import export_end_onnx  # noqa: E402
from exporters.graph.halves import EndModel  # noqa: E402
from exporters.judge.gates import (  # noqa: E402
    cloud_agreement,
    int8_accuracy,
    int8_agreement,
    int8_size,
    require,
    tflite_agreement,
)
from exporters.judge.tflite_loads import tflite_loads  # noqa: E402
from tests.support.export.tiny_halves import CHANNELS, CLASSES, SIZE, photos, trained  # noqa: E402

pytestmark = pytest.mark.export

PIXELS, LABELS = photos(96, seed=3)
CALIBRATION, _ = photos(32, seed=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gates")


@pytest.fixture(scope="module")
def twin(folder) -> Exported:
    return export_end_float(trained().end, folder / "twin.onnx", size=SIZE)


@pytest.fixture(scope="module")
def int8(folder) -> Exported:
    return export_end_onnx(trained().end, CALIBRATION, folder / "end.onnx", arch="x86_64")


@pytest.fixture(scope="module")
def tail(folder) -> Exported:
    spec = TensorSpec("features", (CHANNELS, 8, 8), "NCHW", "int8", 0.25, 0)
    return export_tail(trained().cloud, spec, folder / "tail.onnx")


@pytest.fixture(scope="module")
def broken(folder) -> Exported:
    """An int8 end model whose head learned nothing."""
    torch.manual_seed(0)
    end = trained().end
    head = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(CHANNELS, CLASSES))
    bad = EndModel(end.normalize, end.trunk, end.encode, head, 0.25).eval()
    return export_end_onnx(bad, CALIBRATION, folder / "broken.onnx", arch="x86_64")


def test_int8_gates_of_good_model_pass(int8, twin):
    gates = [int8_agreement(int8, twin, PIXELS), int8_accuracy(int8, twin, PIXELS, LABELS)]
    require(gates)
    assert all(g.ok for g in gates)
    assert "ONNX for x86_64 decides like its float twin" in gates[0].sentence


def test_int8_agreement_of_untrained_head_fails(broken, twin):
    gate = int8_agreement(broken, twin, PIXELS)
    assert gate.ok is False
    assert gate.measured < 0.8
    with pytest.raises(
        GateError, match=r"int8 agreement, ONNX for x86_64 is 0, the budget is 0.95"
    ) as caught:
        require([gate])
    assert caught.value.exit_code == 10
    assert caught.value.budget == 0.95


def test_int8_accuracy_of_untrained_head_fails(broken, twin):
    gate = int8_accuracy(broken, twin, PIXELS, LABELS)
    assert gate.ok is False
    assert gate.measured > 0.2


def test_int8_accuracy_gain_is_negative_loss(int8, broken):
    gate = int8_accuracy(int8, broken, PIXELS, LABELS)
    assert gate.ok
    assert gate.measured < 0


def test_int8_size_is_ratio_against_budget(int8, twin):
    ratio = twin.entry.size / int8.entry.size
    assert int8_size(int8, twin, budget=ratio * 0.99).ok
    assert int8_size(int8, twin, budget=ratio * 1.01).ok is False


def test_tflite_agreement_compares_decisions(int8, broken):
    assert tflite_agreement(int8, int8, PIXELS).measured == 1.0
    assert tflite_agreement(int8, broken, PIXELS).ok is False


def test_cloud_agreement_with_reordered_features_fails(int8, twin, tail, folder):
    assert cloud_agreement(int8, twin, tail, PIXELS).ok
    torch.manual_seed(0)
    end = trained().end
    turned = nn.Conv2d(end.encode.in_channels, CHANNELS, 1)
    with torch.no_grad():
        turned.weight.copy_(end.encode.weight.flip(0))
        turned.bias.copy_(end.encode.bias.flip(0))
    bad = EndModel(end.normalize, end.trunk, turned, end.head, 0.25).eval()
    shuffled = export_end_onnx(bad, CALIBRATION, folder / "shuffled.onnx", arch="x86_64")
    gate = cloud_agreement(shuffled, twin, tail, PIXELS)
    assert gate.ok is False
    assert "the cloud half decides as on the float twin's" in gate.sentence


def test_cloud_agreement_with_wrong_feature_scale_fails(twin, tail, folder):
    shifted = export_end_onnx(
        trained().end, CALIBRATION, folder / "shifted.onnx", arch="x86_64", feature_scale=4.0
    )
    assert cloud_agreement(shifted, twin, tail, PIXELS).ok is False


def test_agreement_leaves_borderline_photos_out(int8):
    """An engine that is torn everywhere agrees with its neighbour only by chance."""

    class Fixed:
        def __init__(self, logits) -> None:
            self.entry, self.logits = int8.entry, np.array(logits, np.float32)

        def __call__(self, pixels):
            return {"logits": self.logits}

    torn, sure = [1.0, 1.01, 0.0], [5.0, 0.0, 0.0]
    gate = int8_agreement(Fixed([[1.01, 1.0, 0.0], sure]), Fixed([torn, sure]), PIXELS[:2])
    assert gate.measured == 1.0
    assert "the 1 photos that are not borderline (50.0% of all 2)" in gate.sentence
    assert int8_agreement(Fixed([torn, torn]), Fixed([torn, sure]), PIXELS[:2]).measured == 0.0
    nothing = int8_agreement(Fixed([[1.01, 1.0, 0.0]]), Fixed([torn]), PIXELS[:1])
    assert nothing.measured == 0.0
    assert "0.0% of 1 photos, all borderline" in nothing.sentence


def test_tflite_loads_without_runtime_is_not_checked(int8):
    (gate,) = tflite_loads(int8, {"FutureLite": "no_such_runtime.interpreter"})
    assert gate.ok is None
    assert gate.measured is None
    assert gate.sentence.endswith("not checked")
    require([gate])


def test_tflite_loads_of_wrong_file_says_why(int8):
    """An ONNX file is no TFLite file."""
    gates = [g for g in tflite_loads(int8) if g.ok is not None]
    assert gates
    for gate in gates:
        assert gate.ok is False
        assert "cannot run the file: " in gate.sentence


def test_photos_beyond_one_batch_keep_order(twin):
    whole = twin(PIXELS)["logits"]
    np.testing.assert_allclose(whole[40:45], twin(PIXELS[40:45])["logits"], atol=1e-5)
