"""Which configurations are measured, and what is refused before."""

from __future__ import annotations

import pytest

from edge_kit.bench import BenchPlan, Effort, run_plan
from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.measurement import Configuration, Measurement
from edge_kit.bench.plan import default_threads
from edge_kit.bundle.labelled_photos import INDEX
from edge_kit.errors import BundleError, EngineError, SourceError
from tests.support.labelled import add_files
from tests.support.tiny import make_bundle


def fake(bundle, file, threads, effort):
    return Measurement(Configuration.of(file, threads), inference=Latency.of([threads / 1e3] * 20))


def test_plan_chooses_engines_threads_and_whole_model(both):
    told = []
    plan = BenchPlan(("tflite",), (4, 1))
    found = run_plan(both, plan, lambda *what: told.append(what), measure=fake)
    assert [m.configuration.threads for m in found.measurements] == [4, 1]
    assert [(index, total) for index, total, _ in told] == [(0, 2), (1, 2)]
    assert found.fastest.configuration.threads == 1
    with pytest.raises(EngineError, match="no model for npu; it has: onnx, tflite"):
        BenchPlan(("npu",)).files(both)
    # The tiny bundle has no whole model; nothing is added.
    assert len(BenchPlan(whole=True).files(both)) == 2


def test_default_threads_stay_within_the_cores(monkeypatch):
    for cores, want in ((1, (1,)), (2, (1, 2)), (3, (1, 2)), (4, (1, 2, 4)), (64, (1, 2, 4))):
        monkeypatch.setattr("edge_kit.bench.plan.available_cores", lambda n=cores: n)
        assert default_threads() == want


def test_unknown_class_folder_is_refused_before_measuring(both, tmp_path):
    (tmp_path / "purple").mkdir()
    (tmp_path / "purple" / "a.png").write_bytes(b"")
    effort = Effort(photos=tmp_path)
    with pytest.raises(SourceError, match="lies in no class folder"):
        run_plan(both, BenchPlan(effort=effort), measure=lambda *what: pytest.fail("measured"))


def test_broken_photo_index_is_refused_before_measuring(tmp_path):
    broken = add_files(make_bundle(tmp_path / "b"), {INDEX: b"{"})
    with pytest.raises(BundleError, match=r"photos\.json of .* cannot be read"):
        run_plan(broken, BenchPlan(), measure=lambda *what: pytest.fail("measured"))
