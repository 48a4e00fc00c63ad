"""Every gate passes a good export and fails a bad one, naming the figure."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from edge_kit.errors import GateError  # noqa: E402
from exporters.exported import Exported  # noqa: E402
from exporters.gates import (  # noqa: E402
    Gate,
    full_parity,
    int8_accuracy,
    int8_agreement,
    int8_size,
    require,
    split_parity,
    tflite_agreement,
)
from exporters.halves import EndModel  # noqa: E402
from exporters.onnx_export import export_end_float, export_full  # noqa: E402
from exporters.onnx_quant import export_end_onnx  # noqa: E402
from exporters.tflite_loads import tflite_loads  # noqa: E402
from tests.tiny_halves import CHANNELS, CLASSES, SIZE, Full, batch, photos, trained  # noqa: E402

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
def broken(folder) -> Exported:
    """An int8 end model whose head learned nothing."""
    torch.manual_seed(0)
    end = trained().end
    head = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(CHANNELS, CLASSES))
    bad = EndModel(end.normalize, end.trunk, end.encode, head, 0.25).eval()
    return export_end_onnx(bad, CALIBRATION, folder / "broken.onnx", arch="x86_64")


def test_int8_gates_pass_a_sound_model(int8, twin):
    gates = [int8_agreement(int8, twin, PIXELS), int8_accuracy(int8, twin, PIXELS, LABELS)]
    require(gates)
    assert all(g.ok for g in gates)
    assert "ONNX for x86_64 decides like its float twin" in gates[0].sentence


def test_int8_agreement_fails_a_broken_model(broken, twin):
    gate = int8_agreement(broken, twin, PIXELS)
    assert gate.ok is False
    assert gate.measured < 0.8
    with pytest.raises(
        GateError, match=r"int8 agreement, ONNX for x86_64 is 0, the budget is 0.95"
    ) as caught:
        require([gate])
    assert caught.value.exit_code == 10
    assert caught.value.budget == 0.95


def test_int8_accuracy_fails_a_broken_model(broken, twin):
    gate = int8_accuracy(broken, twin, PIXELS, LABELS)
    assert gate.ok is False
    assert gate.measured > 0.2


def test_a_gain_in_accuracy_is_no_loss(int8, broken):
    gate = int8_accuracy(int8, broken, PIXELS, LABELS)
    assert gate.ok
    assert gate.measured < 0


def test_size_is_a_ratio(int8, twin):
    ratio = twin.entry.size / int8.entry.size
    assert int8_size(int8, twin, budget=ratio * 0.99).ok
    assert int8_size(int8, twin, budget=ratio * 1.01).ok is False


def test_engines_are_compared_by_decisions(int8, broken):
    assert tflite_agreement(int8, int8, PIXELS).measured == 1.0
    assert tflite_agreement(int8, broken, PIXELS).ok is False


def test_full_parity_passes_its_own_export_and_no_other(folder):
    halves = trained()
    model = Full(halves.end.normalize, halves.end.trunk, halves.cloud.tail).eval()
    full = export_full(model, folder / "full.onnx", size=SIZE)
    assert full_parity(model, full, PIXELS).ok
    torch.manual_seed(1)
    other = Full(
        halves.end.normalize, halves.end.trunk, nn.Sequential(nn.Flatten(), nn.Linear(1024, 4))
    )
    gate = full_parity(other.eval(), full, PIXELS)
    assert gate.ok is False
    assert "differ by at most" in gate.sentence


def test_split_parity_sees_a_lost_layer():
    halves = trained()
    normalize, trunk, tail = halves.end.normalize, halves.end.trunk, halves.cloud.tail
    full = Full(normalize, trunk, tail).eval()
    inputs = batch(PIXELS).numpy()
    assert split_parity(full, nn.Sequential(normalize, trunk), tail, inputs).measured < 1e-6
    assert split_parity(full, trunk, tail, inputs).ok is False


def test_a_missing_runtime_is_not_checked(int8):
    (gate,) = tflite_loads(int8, {"FutureLite": "no_such_runtime.interpreter"})
    assert gate.ok is None
    assert gate.measured is None
    assert gate.sentence.endswith("not checked")
    require([gate])


def test_a_file_that_no_runtime_takes_fails_with_its_reason(int8):
    """An ONNX file is no TFLite file."""
    gates = [g for g in tflite_loads(int8) if g.ok is not None]
    assert gates
    for gate in gates:
        assert gate.ok is False
        assert "cannot run the file: " in gate.sentence


def test_gates_are_kept_as_json():
    gate = Gate("x", 0.5, 0.4, False, "x is off")
    assert gate.to_json() == {
        "name": "x",
        "measured": 0.5,
        "budget": 0.4,
        "ok": False,
        "sentence": "x is off",
    }


def test_more_photos_than_one_batch_keep_their_order(twin):
    whole = twin(PIXELS)["logits"]
    np.testing.assert_allclose(whole[40:45], twin(PIXELS[40:45])["logits"], atol=1e-5)
