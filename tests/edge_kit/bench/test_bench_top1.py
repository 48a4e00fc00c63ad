"""Top-1 of the benchmark: on which photos, by which path, and when two results may be ranked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from edge_kit.bench import Effort, Plan, run_plan
from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.measurement import Configuration, Measurement
from edge_kit.bench.measure.score import LabelledSet, Score
from edge_kit.bench.measure.trial import measure_in_child
from edge_kit.bench.report.accuracy import better
from edge_kit.bench.report.card import card, table
from edge_kit.bench.report.compare import compare
from edge_kit.bench.report.page import page
from edge_kit.bench.report.ranking import standings
from edge_kit.bench.report.report import BenchReport
from edge_kit.bundle.labelled_photos import INDEX, read_reference
from edge_kit.cli import cli
from edge_kit.errors import BundleError
from edge_kit.terminal.command_line import run_group
from tests.support.labelled import add_files, add_reference
from tests.support.tiny import make_bundle
from tests.support.tiny_tflite import make_bundle_with_both

QUICK = Effort(runs=20, warmup=1, max_secs=20, frames=3)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return add_reference(make_bundle_with_both(tmp_path_factory.mktemp("labelled") / "bundle"))


@pytest.fixture(scope="module")
def report(bundle):
    return run_plan(bundle, Plan(threads=(1,), effort=QUICK))


def test_the_bundles_own_photos_give_top1_without_any_option(bundle, report):
    reference = read_reference(bundle)
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


def test_the_same_files_as_a_folder_are_the_same_set(bundle, report):
    folder = bundle.root / "reference" / "photos"
    file = bundle.end_files()[0]
    found = measure_in_child(bundle, file, 1, replace(QUICK, photos=folder))
    assert found.top1_set.source == "photos"
    assert found.top1_set.sha256 == report.measurements[0].top1_set.sha256
    assert found.top1_answers == report.measurements[0].top1_answers
    fewer = measure_in_child(bundle, file, 1, replace(QUICK, limit=2))
    assert fewer.top1.total == 2
    assert fewer.top1_set.sha256 != found.top1_set.sha256


def test_top1_can_be_left_out(bundle):
    found = measure_in_child(bundle, bundle.end_files()[0], 1, replace(QUICK, top1=False))
    assert found.error == "" and found.top1 is None and found.skipped == ()


def test_without_pillow_the_speed_is_still_measured(bundle, tmp_path, monkeypatch):
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL" / "__init__.py").write_text("raise ImportError('no Pillow here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = measure_in_child(bundle, bundle.end_files()[0], 1, QUICK)
    assert found.error == "" and found.inference.count == 20
    assert found.top1 is None
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("no top-1: reading photos needs Pillow")


def test_photos_of_a_bundle_that_are_none_do_not_cost_the_speed(tmp_path):
    rows = {"photos": [{"path": "a.jpg", "label": 0}]}
    files = {INDEX: json.dumps(rows).encode(), "a.jpg": b"no photo"}
    odd = add_files(make_bundle(tmp_path / "b"), files)
    found = measure_in_child(odd, odd.end_files()[0], 1, QUICK)
    assert found.error == "" and found.inference.count == 20
    assert found.top1 is None
    assert found.skipped[0].startswith("no top-1: not one of the labelled photos can be read")


def test_a_broken_index_is_said_before_anything_is_measured(tmp_path):
    broken = add_files(make_bundle(tmp_path / "b"), {INDEX: b"{"})
    with pytest.raises(BundleError, match=r"photos\.json of .* cannot be read"):
        run_plan(broken, Plan(effort=QUICK), measure=lambda *what: pytest.fail("measured"))


ONE = Configuration("end/a.onnx", "onnx", "end", "int8", "any", 1000, 1)
LABELS = (0, 1) * 20


def answered(wrong, labels=LABELS, name="a" * 64, of=ONE, **more):
    """A measurement that has the first `wrong` photos wrong."""
    got = tuple(1 - v if n < wrong else v for n, v in enumerate(labels))
    score = Score.of(len(labels) - wrong, len(labels))
    labelled = LabelledSet("bundle", "test", name, labels)
    latency = Latency.of([0.01] * 30)
    return Measurement(
        of, inference=latency, top1=score, top1_set=labelled, top1_answers=got, **more
    )


def report_of(*measurements, model="aa" * 32):
    about = {"name": "m", "model_hash": model, "threshold": 0.5}
    return BenchReport("0.1.0", 0.0, {"model": "Pi"}, about, {}, measurements)


def test_clearly_more_right_answers_come_first():
    found = compare({"worse": report_of(answered(12)), "good": report_of(answered(2))})
    (group,) = found.accuracy
    assert [(e.label, e.rank, e.alike) for e in group.entries] == [
        ("good", 1, 40),
        ("worse", 2, 30),
    ]
    lines = standings(found).splitlines()
    assert lines[-3] == "top-1 on 40 photos of the bundle's test split (set aaaaaaaa)"
    assert lines[-1].startswith("  2.  28 of 40, 0.700 (0.55-0.82)  worse (Pi; 0.1.0), onnx int8")
    assert lines[-1].endswith("30 of 40 answered as by the first")


def test_a_photo_or_two_are_chance():
    found = compare({"a": report_of(answered(4)), "b": report_of(answered(2))})
    assert [e.rank for e in found.accuracy[0].entries] == [1, 1]


def test_other_photos_are_not_ranked():
    other = report_of(answered(0, name="b" * 64, conditions={"marks": ["throttled: x"]}))
    found = compare({"a": report_of(answered(12)), "b": other})
    assert len(found.accuracy) == 2 and not found.ranked
    for group in found.accuracy:
        assert [e.rank for e in group.entries] == [None]
        assert group.entries[0].unfit == "no other file has top-1 on these photos"
    assert "not ranked: no other file has top-1 on these photos" in standings(found)


@pytest.mark.parametrize("labels", [(0,) * 40, (0, 1) * 3], ids=["other", "fewer"])
def test_a_set_of_the_same_name_with_other_labels_is_another_set(labels):
    found = compare({"a": report_of(answered(1)), "b": report_of(answered(1, labels))})
    assert [g.ranked for g in found.accuracy] == [False, False]


def test_a_result_that_does_not_say_on_which_photos_is_not_ranked():
    old = Measurement(ONE, inference=Latency.of([0.01] * 30), top1=Score.of(9, 10))
    found = compare({"a": report_of(old), "b": report_of(old), "c": report_of(answered(1))})
    unknown = next(g for g in found.accuracy if g.labelled is None)
    assert {e.rank for e in unknown.entries} == {None}
    assert "does not say which photos" in standings(found)


def test_models_and_hot_boards_are_compared_on_the_same_photos():
    hot = answered(2, conditions={"marks": ["throttled: under-voltage"]})
    found = compare({"old": report_of(answered(15)), "new": report_of(hot, model="bb" * 32)})
    assert [(e.label, e.rank) for e in found.accuracy[0].entries] == [("new", 1), ("old", 2)]
    assert found.ranked and not found.speed_ranked


def test_threads_that_answer_alike_are_one_line():
    two = replace(ONE, threads=2)
    found = compare({"a": report_of(answered(3), answered(3, of=two)), "b": report_of(answered(3))})
    assert [(e.label, e.threads) for e in found.accuracy[0].entries] == [
        ("a", (1, 2)),
        ("b", (1,)),
    ]
    assert "1, 2 threads" in standings(found)
    entry = found.to_json()["accuracy"][0]["entries"][0]
    assert (entry["threads"], entry["rank"], entry["alike"]) == ([1, 2], 1, 40)


@pytest.mark.parametrize(
    ("wins", "losses", "sure"),
    [(5, 0, False), (6, 0, True), (0, 6, False), (9, 1, True), (8, 2, False), (0, 0, False)],
)
def test_the_sign_test_has_the_values_of_the_table(wins, losses, sure):
    # Two-sided: 6 of 6 gives 0.031, 5 of 5 gives 0.0625, 9 of 10 gives 0.021, 8 of 10 gives 0.109.
    labels = [0] * (wins + losses + 3)
    first = [0] * wins + [1] * losses + [0, 1, 1]
    second = [1] * wins + [0] * losses + [0, 1, 2]
    assert better(first, second, labels) is sure


def test_compare_as_people_call_it(report, tmp_path, capsys):
    data = report.to_json()
    for m in data["measurements"]:
        m["conditions"]["marks"] = ["disturbed: other programs"]
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert run_group(cli, "edge-kit", ["bench", "compare", *files]) == 0
    said = capsys.readouterr()
    assert "top-1 alone is ranked, no speed" in said.err
    assert said.out.count("3 of 3 answered as by the first") == 4
