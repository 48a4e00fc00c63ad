"""Top-1 of a measurement: on which photos, by which path, and what prevents it."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from edge_kit.bench import BenchPlan, Effort, run_plan
from edge_kit.bench.measure.trial import measure_in_child
from edge_kit.bench.report.card import card, table
from edge_kit.bench.report.page import page
from edge_kit.bundle.labelled_photos import INDEX, read_reference
from tests.support.labelled import add_files
from tests.support.tiny import make_bundle

QUICK = Effort(runs=20, warmup=1, max_secs=20, frames=3)


@pytest.fixture(scope="module")
def report(labelled):
    return run_plan(labelled, BenchPlan(threads=(1,), effort=QUICK))


def test_top1_uses_the_photos_of_the_bundle_by_default(labelled, report):
    reference = read_reference(labelled)
    for m in report.measurements:
        assert (m.top1.right, m.top1.total, m.top1_inference.count) == (2, 3, 3)
        assert (m.top1_set.source, m.top1_set.split) == ("bundle", "test")
        assert m.top1_set.sha256 == reference.sha256
        # In the order of the files' hashes: what was asked, and the red one taken for blue.
        ordered = sorted(reference.photos, key=lambda p: p.sha256)
        assert list(m.top1_set.labels) == [p.label for p in ordered]
        assert list(m.top1_answers) == [{2: 0}.get(p.label, p.label) for p in ordered]
    assert "0.667 (0.21-0.94) of 3" in table(report)
    said = "top-1: 3 photos of the bundle's test split (set "
    assert said in table(report) and said in card(report)
    assert "Top-1 on 3 photos of the bundle&#39;s test split" in page(report)


def test_same_files_as_a_folder_are_the_same_set(labelled, report):
    folder = labelled.root / "reference" / "photos"
    file = labelled.end_files()[0]
    found = measure_in_child(labelled, file, 1, replace(QUICK, photos=folder))
    assert found.top1_set.source == "photos"
    assert found.top1_set.sha256 == report.measurements[0].top1_set.sha256
    assert found.top1_answers == report.measurements[0].top1_answers
    fewer = measure_in_child(labelled, file, 1, replace(QUICK, limit=2))
    assert fewer.top1.total == 2
    assert fewer.top1_set.sha256 != found.top1_set.sha256


def test_top1_can_be_left_out(labelled):
    found = measure_in_child(labelled, labelled.end_files()[0], 1, replace(QUICK, top1=False))
    assert found.error == "" and found.top1 is None and found.skipped == ()


def test_without_pillow_only_top1_is_skipped(labelled, tmp_path, monkeypatch):
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL" / "__init__.py").write_text("raise ImportError('no Pillow here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    found = measure_in_child(labelled, labelled.end_files()[0], 1, QUICK)
    assert found.error == "" and found.inference.count == 20
    assert found.top1 is None
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("no top-1: reading photos needs Pillow")


def test_unreadable_photos_of_a_bundle_skip_only_top1(tmp_path):
    rows = {"photos": [{"path": "a.jpg", "label": 0}]}
    files = {INDEX: json.dumps(rows).encode(), "a.jpg": b"no photo"}
    odd = add_files(make_bundle(tmp_path / "b"), files)
    found = measure_in_child(odd, odd.end_files()[0], 1, QUICK)
    assert found.error == "" and found.inference.count == 20
    assert found.top1 is None
    assert found.skipped[0].startswith("no top-1: not one of the labelled photos can be read")
