"""Measuring configurations: the figures, the children, the report."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge_kit.bench import BenchReport, Effort, Plan, run_plan
from edge_kit.bench.conditions.conditions import Watch
from edge_kit.bench.conditions.state import BoardState
from edge_kit.bench.measure.latency import Latency, TimedEngine, run_calls
from edge_kit.bench.measure.measurement import Configuration, Layer, Measurement
from edge_kit.bench.measure.pipeline import run_pipeline
from edge_kit.bench.measure.profile import layers_of_trace
from edge_kit.bench.measure.roundtrip import RoundTrip, device_environment, device_name, summarize
from edge_kit.bench.measure.score import Score
from edge_kit.bench.measure.subject import WholeModel
from edge_kit.bench.measure.trial import measure_in_child
from edge_kit.bench.plan import default_threads
from edge_kit.bench.report.card import HEAD, card, table
from edge_kit.bench.report.page import page
from edge_kit.bundle.manifest import Preprocessing, StoredFile
from edge_kit.bundle.selftest import SELFTEST
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.end import EndOutput
from edge_kit.engines.engine import FakeEngine
from edge_kit.errors import EngineError, SourceError, UsageError
from edge_kit.tensors import TensorSpec
from edge_kit.wire import Topics
from tests.support.tiny import write_manifest
from tests.support.tiny_tflite import make_bundle_with_both
from tests.system.test_docs import keys

QUICK = Effort(runs=30, warmup=3, max_secs=20, frames=5)


def quiet():
    """A watch over a machine on which nothing happens."""
    return Watch(lambda: BoardState(temperature=40.0), lambda: 0.0)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return make_bundle_with_both(tmp_path_factory.mktemp("both") / "bundle")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    from PIL import Image

    root = tmp_path_factory.mktemp("classes")
    for name, colour in (("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (250, 5, 5))):
        (root / name).mkdir()
        Image.fromarray(np.full((48, 64, 3), colour, np.uint8)).save(root / name / "0.png")
    return root


@pytest.fixture(scope="module")
def report(both, photos):
    effort = replace(QUICK, photos=photos, profile=True)
    plan = Plan(threads=(1, 2), effort=effort)
    return run_plan(both, plan, measure=lambda *what: measure_in_child(*what, watch=quiet))


def test_a_distribution_has_the_figures_of_numpy():
    found = Latency.of([n / 1e3 for n in range(1, 101)])
    assert (found.count, found.minimum, found.maximum) == (100, 1.0, 100.0)
    assert (found.p50, found.mean) == (pytest.approx(50.5), pytest.approx(50.5))
    assert (found.p90, found.p99) == (pytest.approx(90.1), pytest.approx(99.01))
    assert Latency.from_json(found.to_json()).to_json() == found.to_json()


def test_the_engine_is_timed_and_nothing_else():
    calls = []
    timed = TimedEngine(FakeEngine({}, {}, lambda tensors: calls.append(1) or {}))
    seconds = run_calls(timed, lambda index: timed.run({"image": np.zeros((1, 1))}), 7)
    assert len(seconds) == len(calls) == 7
    assert all(s >= 0 for s in seconds)
    assert timed.take() == []


def test_time_runs_out_after_the_first_call():
    timed = TimedEngine(FakeEngine({}, {}, lambda tensors: {}))
    assert len(run_calls(timed, lambda index: timed.run({"x": np.zeros(1)}), 50, 0.0)) == 1


def test_few_photos_make_a_wide_interval():
    four = Score.of(4, 4)
    assert (four.share, four.high) == (1.0, 1.0)
    assert four.low == pytest.approx(0.5101)  # Wilson's interval for 4 of 4
    assert Score.of(0, 10).low == 0.0


def test_every_configuration_is_measured_in_a_process_of_its_own(report):
    configurations = [m.configuration for m in report.measurements]
    assert [(c.engine, c.precision, c.threads) for c in configurations] == [
        ("onnx", "int8", 1), ("onnx", "int8", 2), ("tflite", "int8", 1), ("tflite", "int8", 2),
    ]  # fmt: skip
    for m in report.measurements:
        assert m.error == ""
        assert (m.inference.count, m.warmup.count, len(m.calls_ms)) == (30, 3, 30)
        assert 0 < m.inference.minimum <= m.inference.p50 <= m.inference.p90 <= m.inference.p99
        assert m.init_ms > 0 and m.import_ms > 0 and m.first_inference_ms > 0
        assert 0 < m.memory.baseline < m.memory.peak
        assert m.configuration.size_bytes > 0
        assert m.marks == ()
    assert report.measurements[0].runtime.startswith("onnxruntime ")
    assert "lite" in report.measurements[2].runtime
    assert report.fastest in report.measurements


def test_accuracy_and_pipeline_come_from_the_same_model(report):
    for m in report.measurements:
        # The photo in "blue" is red.
        assert (m.top1.right, m.top1.total) == (2, 3)
        assert m.top1_inference.count == 3
        assert (m.pipeline.frames, m.pipeline.source) == (3, "photos")
        assert m.pipeline.fps > 0
        assert {"source", "preprocess", "engine", "decide", "emit"} == set(m.pipeline.stages_ms)


def test_operators_are_told_where_the_engine_tells_them(report):
    onnx, tflite = report.measurements[0], report.measurements[2]
    assert "AveragePool" in {layer.operator.replace("QLinear", "") for layer in onnx.layers}
    assert sum(layer.share for layer in onnx.layers) == pytest.approx(1.0, abs=1e-3)
    assert list(onnx.layers) == sorted(onnx.layers, key=lambda layer: -layer.mean_ms)
    assert tflite.layers is None
    assert any("tells Python no times of operators" in why for why in tflite.skipped)


def test_without_photos_frames_are_made_up(both):
    file = both.end_files()[0]
    found = measure_in_child(both, file, 1, QUICK, watch=quiet)
    assert found.top1 is None and found.top1_set is None
    assert any("give --photos for top-1" in why for why in found.skipped)
    assert (found.pipeline.frames, found.pipeline.source) == (5, "synthetic")
    assert found.layers is None


def test_the_reference_photos_are_compared_with_the_export(tmp_path):
    bundle = make_bundle_with_both(tmp_path / "bundle")
    file = bundle.end_files()[0]
    colours = np.zeros((4, 16, 16, 3), np.uint8)
    for n in range(4):
        colours[n, ..., n % 3] = 255
    (bundle.root / "reference").mkdir()
    path = bundle.root / SELFTEST
    # The last one is red, whatever the export says.
    np.savez(path, pixels=colours, **{f"{file.path}:labels": np.array([0, 1, 2, 1])})
    bundle = write_manifest(
        bundle.root, replace(bundle.manifest, files={SELFTEST: StoredFile.of(path)})
    )
    found = measure_in_child(bundle, file, 1, QUICK, watch=quiet)
    assert found.error == ""
    assert (found.reference.right, found.reference.total) == (3, 4)


class Still:
    """An end model that answers without looking."""

    feature_spec = TensorSpec("features", (1, 1, 1), "NCHW", "int8")
    file = EngineFile("a.onnx", "end", "onnx", "any", "", 0, (), ())

    def __init__(self):
        self.shapes = set()

    def infer(self, pixels):
        self.shapes.add(pixels.shape)
        return EndOutput(np.zeros((1, 1, 1), np.int8), np.zeros(3, np.float32))


@pytest.mark.parametrize(("size", "without"), [(16, False), (16, True), (600, True)])
def test_a_board_without_opencv_still_has_a_pipeline(both, monkeypatch, size, without):
    if without:
        monkeypatch.setitem(sys.modules, "cv2", None)
    manifest = replace(both.manifest, preprocessing=Preprocessing(size, size))
    model = Still()
    found = run_pipeline(replace(both, manifest=manifest), model, None, 7, 20.0)
    assert (found.frames, found.source) == (7, "synthetic")
    assert model.shapes == {(size, size, 3)}


def test_the_report_survives_json(report, tmp_path):
    report = replace(
        report, round_trip=RoundTrip("mqtt://b", "onnx", 1, 3, 3, 98.0, Latency.of([0.01]))
    )
    file = tmp_path / "a.json"
    file.write_text(json.dumps(report.to_json()))
    again = BenchReport.read(file)
    assert again.to_json() == report.to_json()
    file.write_text(json.dumps(report.to_json() | {"later": 1}))
    assert BenchReport.read(file).model_hash == report.model_hash


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read as a benchmark"),
        ("", "is empty: that run wrote nothing"),
        ('{"kind": "edge-kit-bench", "schema": true}', "states no schema version"),
        ('{"kind": "edge-kit-bench"}', "states no schema version"),
        ("[]", "is no benchmark"),
        ('{"kind": "edge-kit-bench", "schema": 99}', "reads up to 1"),
        ('{"kind": "edge-kit-bench", "schema": 1}', "is damaged"),
        ('{"kind": "edge-kit-bench", "schema": 1, "round_trip": 5, "model": 3}', "is damaged"),
    ],
)
def test_what_is_no_report_is_said(tmp_path, text, why):
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=why):
        BenchReport.read(file)


def test_a_missing_report_is_said(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        BenchReport.read(tmp_path / "none.json")


def test_an_engine_that_fails_leaves_its_reason(both):
    code = "import sys; sys.exit('no such wheel')"
    found = measure_in_child(
        both,
        both.end_files()[0],
        1,
        QUICK,
        command=lambda: [sys.executable, "-c", code],
        watch=quiet,
    )
    assert found.inference is None
    assert "failed with status 1 (no such wheel)" in found.error
    assert found.conditions["before"]["temperature_c"] == 40.0


def test_a_child_that_hangs_is_given_up(both, monkeypatch):
    monkeypatch.setattr("edge_kit.bench.measure.trial._START_S", 0.2)
    effort = Effort(max_secs=0.01)
    sleeper = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    found = measure_in_child(
        both, both.end_files()[0], 1, effort, command=lambda: sleeper, watch=quiet
    )
    assert "gave no answer" in found.error


def test_an_engine_that_is_not_installed_is_named(both, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = measure_in_child(both, both.end_files()[0], 1, QUICK)
    assert "needs onnxruntime, which is not installed" in found.error


def test_photos_that_are_no_good_end_it_at_once(both, tmp_path):
    (tmp_path / "purple").mkdir()
    (tmp_path / "purple" / "a.png").write_bytes(b"")
    effort = replace(QUICK, photos=tmp_path)
    with pytest.raises(SourceError, match="no class of the bundle"):
        run_plan(both, Plan(effort=effort), measure=lambda *what: pytest.fail("measured"))


def test_an_unreadable_photo_of_a_child_is_an_error_of_the_photos(both):
    answer = 'print(\'{"error": "not one photo can be read", "code": 5}\')'
    with pytest.raises(SourceError, match="not one photo"):
        measure_in_child(
            both, both.end_files()[0], 1, QUICK, command=lambda: [sys.executable, "-c", answer]
        )


def fake(bundle, file, threads, effort):
    return Measurement(Configuration.of(file, threads), inference=Latency.of([threads / 1e3] * 20))


def test_the_plan_chooses_engines_threads_and_the_whole_model(both):
    told = []
    plan = Plan(("tflite",), (4, 1))
    found = run_plan(both, plan, lambda *what: told.append(what), measure=fake)
    assert [m.configuration.threads for m in found.measurements] == [4, 1]
    assert [(index, total) for index, total, _ in told] == [(0, 2), (1, 2)]
    assert found.fastest.configuration.threads == 1
    with pytest.raises(EngineError, match="no model for npu; it has: onnx, tflite"):
        Plan(("npu",)).files(both)
    # The tiny bundle has no whole model; nothing is added.
    assert len(Plan(whole=True).files(both)) == 2


def test_threads_by_default_stay_within_the_cores(monkeypatch):
    for cores, want in ((1, (1,)), (2, (1, 2)), (3, (1, 2)), (4, (1, 2, 4)), (64, (1, 2, 4))):
        monkeypatch.setattr("edge_kit.bench.plan.available_cores", lambda n=cores: n)
        assert default_threads() == want


def test_a_whole_model_takes_pixels_as_floats():
    image = TensorSpec("image", (3, 2, 4), "NCHW", "float32")
    logits = TensorSpec("logits", (2,), "NC", "float32")
    seen = []

    def call(tensors):
        seen.append(tensors["image"].copy())
        return {"logits": np.array([[1.0, 3.0]], np.float32)}

    file = EngineFile("full.onnx", "full", "onnx", "any", "", 0, (image,), (logits,))
    model = WholeModel(FakeEngine({"image": image}, {"logits": logits}, call), file)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert list(model.infer(pixels).logits) == [1.0, 3.0]
    assert seen[0].dtype == np.float32
    assert np.array_equal(seen[0][0], pixels.transpose(2, 0, 1))
    with pytest.raises(EngineError, match="is no whole model"):
        WholeModel(FakeEngine({"features": image}, {"logits": logits}, call), file)


def test_a_trace_is_added_up_by_operator():
    def node(name, operator, us, cat="Node"):
        args = {"op_name": operator, "output_type_shape": [{"int8": [1, 4]}]}
        return {"cat": cat, "name": name, "dur": us, "args": args}

    trace = [
        node("a_kernel_time", "Conv", 300), node("a_kernel_time", "Conv", 500),
        node("b_kernel_time", "Add", 200), node("a_fence_before", "Conv", 9000),
        {"cat": "Session", "name": "model_run", "dur": 99999},
    ]  # fmt: skip
    assert list(layers_of_trace(trace, 2)) == [
        Layer("a", "Conv", "int8 1 x 4", 0.4, 0.8),
        Layer("b", "Add", "int8 1 x 4", 0.1, 0.2),
    ]
    assert list(layers_of_trace([], 1)) == []


def test_what_a_device_wrote_becomes_a_round_trip():
    lines = [
        {"status": "provisional", "tier": "device", "bytes_sent": 100, "round_trip_ms": None},
        {"status": "provisional", "tier": "device", "bytes_sent": 200, "round_trip_ms": None},
        {"status": "final", "tier": "cloud", "bytes_sent": 100, "round_trip_ms": 12.0},
        {"summary": {}},
    ]
    found = summarize(lines, "mqtt://b", "onnx", 2)
    assert (found.sent, found.answered, found.bytes_mean) == (2, 1, 150.0)
    assert found.round_trip.p50 == pytest.approx(12.0)
    assert summarize([], "mqtt://b", "onnx", 2).round_trip is None


def test_only_what_proves_who_we_are_reaches_the_device():
    env = {"EDGE_KIT_SOURCE": "x", "EDGE_KIT_PASSWORD": "p", "EDGE_KIT_TLS_CA": "c", "PATH": "/"}
    assert set(device_environment(env)) == {"EDGE_KIT_PASSWORD", "EDGE_KIT_TLS_CA", "PATH"}


def test_the_host_makes_a_valid_device_id(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Küche (2)." + "x" * 80)
    assert Topics(device_name()).device.startswith("bench-K-che--2-.")


def test_the_card_is_a_table_that_a_board_name_cannot_break(report):
    odd = replace(report, board={**report.board, "model": "Pi | <b>4</b>"})
    lines = card(odd).splitlines()
    assert lines[0] == "## edge-kit bench: Pi | <b>4</b>"
    assert any(line.startswith("| board | Pi \\| <b>4</b>") for line in lines)
    at = lines.index(f"| {' | '.join(HEAD)} |")
    rows = lines[at + 2 : at + 2 + len(report.measurements)]
    assert [row.split(" | ")[1] for row in rows] == ["1", "2", "1", "2"]
    assert "0.667 (0.21-0.94) of 3" in rows[0]


def test_the_page_stands_alone_and_shows_marks(report):
    first, *rest = report.measurements
    marked = replace(first, conditions={**first.conditions, "marks": ["throttled: under-voltage"]})
    failed = Measurement(first.configuration, error="<died>")
    odd = replace(
        report,
        board={**report.board, "model": "Pi <4>"},
        measurements=[marked, *rest, failed],
    )
    html = page(odd)
    assert "edge-kit bench: Pi &lt;4&gt;" in html
    assert "throttled: under-voltage" in html and "failed: &lt;died&gt;" in html
    assert html.count("<svg") == 5  # the watch of this test tells temperatures
    assert "http" not in html and "<script" not in html
    assert "Not to be trusted" not in page(report)


def test_a_failed_engine_stands_in_the_table_with_its_reason(report):
    failed = Measurement(report.measurements[0].configuration, error="the wheel died")
    text = table(replace(report, measurements=[*report.measurements, failed]))
    assert text.splitlines()[5].endswith("failed: the wheel died")


def test_a_report_without_any_figure_still_makes_pages(report):
    failed = Measurement(report.measurements[0].configuration, error="the wheel died")
    nothing = replace(report, measurements=[failed])
    assert nothing.fastest is None
    assert "the wheel died" in card(nothing) and "the wheel died" in page(nothing)


def test_the_page_under_docs_names_every_key(report):
    text = (Path(__file__).parents[3] / "docs/benchmark.md").read_text(encoding="utf-8")
    trip = RoundTrip("mqtt://b", "onnx", 1, 3, 3, 98.0, Latency.of([0.01]))
    data = replace(report, round_trip=trip).to_json()
    one = data["measurements"][0]
    assert keys(text, "## JSON") == set(data)
    assert keys(text, "### A measurement") == set(one)
    assert keys(text, "### A configuration") == set(one["configuration"])
    assert keys(text, "### A distribution") == set(one["inference_ms"])
    assert keys(text, "### A score") == set(one["top1"])
    assert keys(text, "### A set of photos") == set(one["top1_set"])
    assert keys(text, "### Conditions") == set(one["conditions"])
    assert keys(text, "### A state") == set(one["conditions"]["before"])
    assert keys(text, "### A round trip") == set(data["round_trip"])
    rows = {n: one[n] for n in ("pipeline", "memory_bytes")}
    rows |= {"layers": one["layers"][0], "during": one["conditions"]["during"]}
    for name, parts in rows.items():
        line = next(row for row in text.splitlines() if row.startswith(f"| `{name}` |"))
        assert all(f"`{part}`" in line for part in parts)
