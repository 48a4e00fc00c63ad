"""Gates against files with one planted defect each, and against answers counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from onnx import numpy_helper  # noqa: E402

from edge_kit.errors import GateError  # noqa: E402
from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.engines.exported import Exported  # noqa: E402
from exporters.engines.onnx_export import export_end_float, export_tail  # noqa: E402
from exporters.engines.onnx_quant import export_end_onnx  # noqa: E402
from exporters.judge import gates  # noqa: E402
from exporters.judge.gates import Gate, require  # noqa: E402
from tests.support.export.tiny_halves import CHANNELS, CLASSES, SIZE, photos, trained  # noqa: E402

pytestmark = pytest.mark.export

PIXELS, LABELS = photos(96, seed=3)
CALIBRATION, _ = photos(32, seed=4)
SPEC = TensorSpec("features", (CHANNELS, 8, 8), "NCHW", "int8", 0.25, 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("defects")


@pytest.fixture(scope="module")
def twin(folder) -> Exported:
    return export_end_float(trained().end, folder / "twin.onnx", size=SIZE)


@pytest.fixture(scope="module")
def end(folder) -> Exported:
    return export_end_onnx(trained().end, CALIBRATION, folder / "end.onnx", arch="x86_64")


@pytest.fixture(scope="module")
def tail(folder) -> Exported:
    return export_tail(trained().cloud, SPEC, folder / "tail.onnx")


def spoiled(file: Exported, change: Callable[[onnx.ModelProto], None]) -> Exported:
    """Return the same file with one defect."""
    model = onnx.load(file.source)
    change(model)
    path = file.source.with_name(f"spoiled-{file.source.name}")
    onnx.save(model, path)
    return Exported(path, replace(file.entry, size=path.stat().st_size))


def rewritten(name: str, change: Callable[[np.ndarray], np.ndarray]):
    """Return a defect of one constant."""

    def apply(model: onnx.ModelProto) -> None:
        (stored,) = (i for i in model.graph.initializer if i.name == name)
        values = change(numpy_helper.to_array(stored).copy())
        stored.CopyFrom(numpy_helper.from_array(values, name))

    return apply


def constant(file: Exported, fits: Callable[[np.ndarray], bool]) -> str:
    """Return the name of the first constant that fits; compacted files have no telling names."""
    graph = onnx.load(file.source).graph
    return next(i.name for i in graph.initializer if fits(numpy_helper.to_array(i)))


def dense(file: Exported) -> str:
    """Return the weight of the exit's last layer."""
    return constant(file, lambda v: v.dtype == np.int8 and v.ndim == 2)


def first_kernel(file: Exported) -> str:
    """Return the weight of the trunk's first layer."""
    return constant(file, lambda v: v.dtype == np.int8 and v.ndim == 4 and v.shape[1] == 3)


def output_scale(name: str):
    """Return a defect: the quantizer that makes an output steps eight times as far."""

    def apply(model: onnx.ModelProto) -> None:
        graph = model.graph
        maker = next(n for n in graph.node if name in n.output)
        scale = next(i for i in graph.initializer if i.name == maker.input[1])
        wrong = numpy_helper.to_array(scale) * np.float32(8)
        wrong = numpy_helper.from_array(np.asarray(wrong, np.float32), "wrong_scale")
        graph.initializer.append(wrong)
        maker.input[1] = "wrong_scale"

    return apply


def test_good_files_pass_every_gate(end, twin, tail):
    found = [
        gates.int8_agreement(end, twin, PIXELS),
        gates.cloud_agreement(end, twin, tail, PIXELS),
        gates.int8_accuracy(end, twin, PIXELS, LABELS),
        gates.int8_size(end, twin, budget=1.5),
        gates.tflite_agreement(end, end, PIXELS),
    ]
    require(found)
    assert [g.ok for g in found] == [True] * 5
    for gate in found:
        assert "needed" in gate.sentence or "allowed" in gate.sentence


DEFECTS: dict[str, tuple[Callable[[Exported], str], Callable[[np.ndarray], np.ndarray]]] = {
    "exit-weights-reversed": (dense, lambda v: -v),
    "classes-in-other-order": (dense, lambda v: np.roll(v, 1, axis=0)),
    "exit-weights-zero": (dense, np.zeros_like),
    "trunk-channels-in-other-order": (first_kernel, lambda v: v[::-1].copy()),
    "colours-in-other-order": (first_kernel, lambda v: v[:, ::-1].copy()),
}


@pytest.mark.parametrize("kind", sorted(DEFECTS))
def test_defect_of_weights_fails_agreement_and_accuracy(end, twin, kind):
    find, change = DEFECTS[kind]
    bad = spoiled(end, rewritten(find(end), change))
    for gate in (
        gates.int8_agreement(bad, twin, PIXELS),
        gates.int8_accuracy(bad, twin, PIXELS, LABELS),
    ):
        assert gate.ok is False
        assert gate.name.endswith("ONNX for x86_64")
        with pytest.raises(GateError, match=gate.name) as caught:
            require([gate])
        assert caught.value.measured == gate.measured


def test_defect_of_feature_scale_fails_cloud_agreement_only(end, twin, tail):
    bad = spoiled(end, output_scale("features"))
    gate = gates.cloud_agreement(bad, twin, tail, PIXELS)
    assert gate.ok is False
    assert gate.name == "int8 features, ONNX for x86_64"
    assert f"{gate.measured:.1%} of the" in gate.sentence
    assert gates.int8_agreement(bad, twin, PIXELS).ok


def test_labels_of_other_photos_leave_loss_near_zero(end, twin):
    """Wrong labels hit both files alike: this gate is about the engine, not about the data."""
    gate = gates.int8_accuracy(end, twin, PIXELS, np.roll(LABELS, 1))
    assert abs(gate.measured) <= 0.03


def test_padded_file_fails_size_gate(end, twin):
    ratio = twin.entry.size / end.entry.size
    bad = spoiled(end, lambda model: model.metadata_props.add(key="x", value="0" * 50_000))
    gate = gates.int8_size(bad, twin, budget=ratio)
    assert gate.ok is False
    assert f"{bad.entry.size:,} bytes, {gate.measured:.2f} times fewer" in gate.sentence
    assert gates.int8_size(end, twin, budget=ratio).ok


def test_defect_of_one_engine_fails_agreement_of_both(end):
    bad = spoiled(end, rewritten(dense(end), lambda v: -v))
    gate = gates.tflite_agreement(bad, end, PIXELS)
    assert gate.ok is False
    assert gate.name == "TFLite against ONNX"


class Answers:
    """An engine with given logits or features, whatever the photos."""

    def __init__(self, file: Exported, **answers: np.ndarray) -> None:
        self.entry, self.answers = file.entry, answers

    def __call__(self, batch: np.ndarray) -> dict[str, np.ndarray]:
        return self.answers


def sure(labels: np.ndarray) -> np.ndarray:
    return (9 * np.eye(CLASSES)[labels]).astype(np.float32)


@pytest.mark.parametrize(("wrong", "ok"), [(0, True), (1, True), (2, False)])
def test_agreement_of_twenty_photos_allows_one_at_95_percent(end, wrong, ok):
    truth = np.arange(20) % CLASSES
    given = np.where(np.arange(20) < wrong, (truth + 1) % CLASSES, truth)
    gate = gates.int8_agreement(
        Answers(end, logits=sure(given)), Answers(end, logits=sure(truth)), PIXELS[:20], budget=0.95
    )
    assert gate.ok is ok
    assert gate.measured == pytest.approx(1 - wrong / 20)
    assert f"{1 - wrong / 20:.1%} of the 20 photos" in gate.sentence
    assert "at least 95.0% needed" in gate.sentence


@pytest.mark.parametrize(("wrong", "ok"), [(0, True), (1, True), (2, False)])
def test_accuracy_of_hundred_photos_allows_loss_of_one_at_one_percent(end, wrong, ok):
    truth = np.arange(100) % CLASSES
    given = np.where(np.arange(100) < wrong, (truth + 1) % CLASSES, truth)
    gate = gates.int8_accuracy(
        Answers(end, logits=sure(given)),
        Answers(end, logits=sure(truth)),
        np.zeros((100, 1)),
        truth,
        budget=0.01,
    )
    assert gate.ok is ok
    assert f"top-1 {1 - wrong / 100:.3f}, its float twin 1.000, on 100 photos" in gate.sentence


@pytest.mark.parametrize(("size", "ok"), [(1000, True), (1001, False)])
def test_size_at_exactly_the_budget_passes(end, twin, size, ok):
    small = Exported(end.source, replace(end.entry, size=size))
    large = Exported(twin.source, replace(twin.entry, size=3500))
    assert gates.int8_size(small, large, budget=3.5).ok is ok


def gate(name: str, measured: float | None, ok: bool | None) -> Gate:
    return Gate(name, measured, 0.5, ok, f"{name} in words")


def test_require_names_first_failed_gate_and_skips_unchecked_ones():
    found = [gate("good", 0.9, True), gate("unchecked", None, None), gate("bad", 0.25, False)]
    with pytest.raises(GateError, match=r"bad is 0\.25, the budget is 0\.5") as caught:
        require([*found, gate("worse", 0.1, False)])
    assert (caught.value.measured, caught.value.budget) == (0.25, 0.5)
    require(found[:2])


def test_require_of_failed_gate_without_figure_raises_too():
    with pytest.raises(GateError, match="bad is nan"):
        require([gate("bad", None, False)])
