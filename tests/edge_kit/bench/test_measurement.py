"""Measure configurations, each in a process of its own: speed, memory, operators, failures."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from edge_kit.bench import BenchPlan, Effort, run_plan
from edge_kit.bench.measure.latency import Latency, TimedEngine, run_calls
from edge_kit.bench.measure.measurement import Layer
from edge_kit.bench.measure.pipeline import run_pipeline
from edge_kit.bench.measure.profile import layers_of_trace
from edge_kit.bench.measure.score import Score
from edge_kit.bench.measure.task import Task
from edge_kit.bench.measure.trial import measure_in_child
from edge_kit.bundle.manifest import Preprocessing, StoredFile
from edge_kit.bundle.selftest import SELFTEST
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.end import EndOutput, ImageModel
from edge_kit.engines.engine import FakeEngine
from edge_kit.errors import EngineError, SourceError
from edge_kit.records import to_json
from edge_kit.tensors import TensorSpec
from tests.edge_kit.bench.samples import quiet
from tests.support.tiny import write_manifest
from tests.support.tiny_tflite import make_bundle_with_both


def test_latency_has_the_figures_of_numpy():
    found = Latency.of([n / 1e3 for n in range(1, 101)])
    assert (found.count, found.minimum, found.maximum) == (100, 1.0, 100.0)
    assert (found.p50, found.mean) == (pytest.approx(50.5), pytest.approx(50.5))
    assert (found.p90, found.p99) == (pytest.approx(90.1), pytest.approx(99.01))


def test_timed_engine_times_its_engine_only():
    calls = []
    timed = TimedEngine(FakeEngine({}, {}, lambda tensors: calls.append(1) or {}))
    seconds = run_calls(timed, lambda index: timed.run({"image": np.zeros((1, 1))}), 7)
    assert len(seconds) == len(calls) == 7
    assert all(s >= 0 for s in seconds)
    assert timed.take() == []


def test_run_calls_stops_after_max_secs():
    timed = TimedEngine(FakeEngine({}, {}, lambda tensors: {}))
    assert len(run_calls(timed, lambda index: timed.run({"x": np.zeros(1)}), 50, 0.0)) == 1


def test_score_of_few_photos_has_a_wide_interval():
    four = Score.of(4, 4)
    assert (four.share, four.high) == (1.0, 1.0)
    assert four.low == pytest.approx(0.5101)  # Wilson's interval for 4 of 4
    assert Score.of(0, 10).low == 0.0


QUICK = Effort(runs=30, warmup=3, max_secs=20, frames=5)


@pytest.fixture(scope="module")
def report(both, photos):
    effort = replace(QUICK, photos=photos, profile=True)
    plan = BenchPlan(threads=(1, 2), effort=effort)
    return run_plan(both, plan, measure=lambda *what: measure_in_child(*what, monitor=quiet))


def test_every_configuration_is_measured(report):
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
        assert m.conditions.marks == ()
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


def test_profile_lists_operators_where_the_engine_tells_them(report):
    onnx, tflite = report.measurements[0], report.measurements[2]
    assert "AveragePool" in {layer.operator.replace("QLinear", "") for layer in onnx.layers}
    assert sum(layer.share for layer in onnx.layers) == pytest.approx(1.0, abs=1e-3)
    assert list(onnx.layers) == sorted(onnx.layers, key=lambda layer: -layer.mean_ms)
    assert tflite.layers is None
    assert any("tells Python no times of operators" in why for why in tflite.skipped)


def test_pipeline_without_photos_uses_synthetic_frames(both):
    file = both.end_files()[0]
    found = measure_in_child(both, file, 1, QUICK, monitor=quiet)
    assert found.top1 is None and found.top1_set is None
    assert any("give --photos for top-1" in why for why in found.skipped)
    assert (found.pipeline.frames, found.pipeline.source) == (5, "synthetic")
    assert found.layers is None


def test_self_test_counts_answers_as_at_the_export(tmp_path):
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
    found = measure_in_child(bundle, file, 1, QUICK, monitor=quiet)
    assert found.error == ""
    assert (found.self_test.right, found.self_test.total) == (3, 4)


class FixedModel:
    """An end model that answers without looking."""

    feature_spec = TensorSpec("features", (1, 1, 1), "NCHW", "int8")
    file = EngineFile("a.onnx", "end", "onnx", "any", "", 0, (), ())

    def __init__(self):
        self.shapes = set()

    def infer(self, pixels):
        self.shapes.add(pixels.shape)
        return EndOutput(np.zeros((1, 1, 1), np.int8), np.zeros(3, np.float32))


@pytest.mark.parametrize(("size", "without"), [(16, False), (16, True), (600, True)])
def test_pipeline_without_opencv_uses_frames_of_the_models_size(both, monkeypatch, size, without):
    if without:
        monkeypatch.setitem(sys.modules, "cv2", None)
    manifest = replace(both.manifest, preprocessing=Preprocessing(size, size))
    model = FixedModel()
    found = run_pipeline(replace(both, manifest=manifest), model, None, 7, 20.0)
    assert (found.frames, found.source) == (7, "synthetic")
    assert model.shapes == {(size, size, 3)}


def test_failed_engine_leaves_its_reason(both):
    code = "import sys; sys.exit('no such wheel')"
    found = measure_in_child(
        both,
        both.end_files()[0],
        1,
        QUICK,
        command=lambda: [sys.executable, "-c", code],
        monitor=quiet,
    )
    assert found.inference is None
    assert "failed with status 1 (no such wheel)" in found.error
    assert found.conditions.before.temperature_c == 40.0


def test_child_that_hangs_is_given_up(both, monkeypatch):
    monkeypatch.setattr("edge_kit.bench.measure.task._START_S", 0.2)
    effort = Effort(max_secs=0.01)
    sleeper = [sys.executable, "-c", "import threading; threading.Event().wait()"]
    found = measure_in_child(
        both, both.end_files()[0], 1, effort, command=lambda: sleeper, monitor=quiet
    )
    assert "gave no answer" in found.error


def test_missing_engine_package_is_named(both, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = measure_in_child(both, both.end_files()[0], 1, QUICK)
    assert "needs onnxruntime, which is not installed" in found.error


def test_child_error_about_photos_is_a_source_error(both):
    answer = 'print(\'{"error": "not one photo can be read", "code": 5}\')'
    with pytest.raises(SourceError, match="not one photo"):
        measure_in_child(
            both, both.end_files()[0], 1, QUICK, command=lambda: [sys.executable, "-c", answer]
        )


def test_whole_model_takes_pixels_as_floats():
    image = TensorSpec("image", (3, 2, 4), "NCHW", "float32")
    logits = TensorSpec("logits", (2,), "NC", "float32")
    seen = []

    def call(tensors):
        seen.append(tensors["image"].copy())
        return {"logits": np.array([[1.0, 3.0]], np.float32)}

    file = EngineFile("full.onnx", "full", "onnx", "any", "", 0, (image,), (logits,))
    model = ImageModel(FakeEngine({"image": image}, {"logits": logits}, call), file)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    assert list(model.classify(pixels)) == [1.0, 3.0]
    assert seen[0].dtype == np.float32
    assert np.array_equal(seen[0][0], pixels.transpose(2, 0, 1))
    with pytest.raises(EngineError, match="not one image"):
        ImageModel(FakeEngine({"features": image}, {"logits": logits}, call), file)


def test_trace_is_added_up_by_operator():
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


def test_profile_without_temporary_folder_is_skipped_with_a_reason(labelled, tmp_path):
    code = "import tempfile, sys; tempfile.tempdir = sys.argv[1]\n"
    code += "from edge_kit.bench.measure.child import _main; sys.exit(_main(sys.argv[2]))"
    file = next(f for f in labelled.end_files() if f.engine == "onnx")
    effort = Effort(20, 1, 20, 3, profile=True)
    task = json.dumps(to_json(Task(labelled.root, labelled.split.name, file.path, 1, effort)))
    argv = [sys.executable, "-c", code, str(tmp_path / "none"), task]
    found = measure_in_child(labelled, file, 1, effort, command=lambda: argv)
    assert found.error == "" and found.inference.count == 20 and found.layers is None
    assert any(why.startswith(f"no profile of {file.path}: ") for why in found.skipped)
