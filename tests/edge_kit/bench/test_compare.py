"""Ranking speed and top-1 where it is fair, and only there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.measurement import Measurement
from edge_kit.bench.measure.score import Score
from edge_kit.bench.report.accuracy import any_ranked, better
from edge_kit.bench.report.compare import compare
from edge_kit.bench.report.ranking import ranking
from edge_kit.errors import UsageError
from tests.edge_kit.bench.samples import ONE, answered, marked, measured, report_of


def ranks(found):
    return [[(e.label, e.rank) for e in g.entries] for g in found.groups]


def test_faster_board_comes_first():
    found = compare({"slow": report_of(measured(20)), "fast": report_of(measured(10))})
    assert ranks(found) == [[("fast", 1), ("slow", 2)]]
    assert found.ranked
    lines = ranking(found).splitlines()
    assert lines[0] == f"onnx int8, 1 thread, model {'aa' * 8}"
    assert lines[1].split()[:4] == ["1.", "10.00", "ms", "1.00"] and "fast (Pi" in lines[1]
    assert lines[2].split()[:4] == ["2.", "20.00", "ms", "2.00"]


def test_close_medians_share_a_rank():
    found = compare(
        {"a": report_of(measured(10)), "b": report_of(measured(10.4)), "c": report_of(measured(12))}
    )
    assert ranks(found) == [[("a", 1), ("b", 1), ("c", 3)]]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (report_of(measured(5), model="bb" * 32), "no other file measured this model"),
        (
            report_of(measured(5, replace(ONE, threads=4))),
            "no other file measured onnx int8, 1 thread",
        ),
        (
            report_of(measured(5, replace(ONE, engine="tflite"))),
            "no other file measured onnx int8 of this model",
        ),
        (
            report_of(measured(5, replace(ONE, precision="float32", role="full"))),
            "no other file measured onnx int8 of this model",
        ),
    ],
    ids=["model", "threads", "engine", "precision"],
)
def test_different_work_is_not_ranked(other, why):
    found = compare({"a": report_of(measured(10)), "b": other})
    assert len(found.groups) == 2
    assert not found.ranked
    mine = next(g for g in found.groups if g.entries[0].label == "a")
    assert [e.unfit for e in mine.entries] == [why]
    assert f"not ranked: {why}" in ranking(found)


def test_two_files_of_one_bundle_are_not_ranked():
    twice = report_of(measured(10), measured(20, replace(ONE, file="end/b.onnx")))
    found = compare({"a": twice, "b": report_of(measured(5, replace(ONE, threads=4)))})
    assert not found.ranked


def test_run_alone_beside_marked_runs_is_not_ranked():
    spoiled = report_of(measured(5, conditions=marked("throttled: under-voltage")))
    found = compare({"a": report_of(measured(10)), "b": spoiled})
    assert ranks(found) == [[("a", None), ("b", None)]]
    assert found.groups[0].entries[0].unfit == "nothing fit to be ranked against it"


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        (measured(5, conditions=marked("throttled: under-voltage")), "throttled"),
        (measured(5, conditions=marked("disturbed: other programs")), "disturbed"),
        (measured(5, calls=19), "only 19 calls"),
        (Measurement(ONE, error="it died"), "failed: it died"),
    ],
    ids=["throttled", "disturbed", "few", "failed"],
)
def test_marked_run_is_shown_and_not_ranked(spoiled, why):
    found = compare(
        {"bad": report_of(spoiled), "a": report_of(measured(10)), "b": report_of(measured(20))}
    )
    assert ranks(found) == [[("a", 1), ("b", 2), ("bad", None)]]
    last = ranking(found).splitlines()[-1]
    assert last.startswith("   -") and f"not ranked: {why}" in last


def test_ranked_groups_come_first_and_json_has_all():
    four = replace(ONE, threads=4)
    found = compare({"a": report_of(measured(1, four), measured(10)), "b": report_of(measured(20))})
    data = found.to_json()
    assert [g["threads"] for g in data["groups"]] == [1, 4]
    assert [e["rank"] for e in data["groups"][0]["entries"]] == [1, 2]
    assert data["groups"][1]["entries"][0]["unfit"] == "no other file measured onnx int8, 4 threads"
    assert data["groups"][0]["entries"][0]["inference_ms"]["p50"] == 10.0


def test_calls_of_no_time_keep_their_rank():
    found = compare({"a": report_of(measured(0)), "b": report_of(measured(10))})
    assert [line.split()[0] for line in ranking(found).splitlines()[1:]] == ["1.", "2."]


def test_control_characters_of_a_board_name_are_escaped():
    odd = report_of(measured(5), board="Pi\x1b[2J\nmine")
    text = ranking(compare({"a": odd, "b": report_of(measured(10))}))
    assert "a (Pi\\x1b[2J\\nmine; 0.1.0" in text


def test_one_file_cannot_be_compared():
    with pytest.raises(UsageError, match="one benchmark cannot be compared"):
        compare({"a": report_of(measured(1))})


def test_clearly_more_right_answers_come_first():
    found = compare({"worse": report_of(answered(12)), "good": report_of(answered(2))})
    (group,) = found.accuracy
    assert [(e.label, e.rank, e.alike) for e in group.entries] == [
        ("good", 1, 40),
        ("worse", 2, 30),
    ]
    lines = ranking(found).splitlines()
    assert lines[-3] == "top-1 on 40 photos of the bundle's test split (set aaaaaaaa)"
    assert lines[-1].startswith("  2.  28 of 40, 0.700 (0.55-0.82)  worse (Pi; 0.1.0), onnx int8")
    assert lines[-1].endswith("30 of 40 answered as by the first")


def test_difference_of_two_photos_shares_a_rank():
    found = compare({"a": report_of(answered(4)), "b": report_of(answered(2))})
    assert [e.rank for e in found.accuracy[0].entries] == [1, 1]


def test_top1_on_other_photos_is_not_ranked():
    other = report_of(answered(0, name="b" * 64, conditions=marked("throttled: x")))
    found = compare({"a": report_of(answered(12)), "b": other})
    assert len(found.accuracy) == 2 and not found.ranked
    for group in found.accuracy:
        assert [e.rank for e in group.entries] == [None]
        assert group.entries[0].unfit == "no other file has top-1 on these photos"
    assert "not ranked: no other file has top-1 on these photos" in ranking(found)


@pytest.mark.parametrize("labels", [(0,) * 40, (0, 1) * 3], ids=["other", "fewer"])
def test_set_with_other_labels_is_another_set(labels):
    found = compare({"a": report_of(answered(1)), "b": report_of(answered(1, labels))})
    assert [any_ranked(g.entries) for g in found.accuracy] == [False, False]


def test_top1_on_unknown_photos_is_not_ranked():
    old = Measurement(ONE, inference=Latency.of([0.01] * 30), top1=Score.of(9, 10))
    found = compare({"a": report_of(old), "b": report_of(old), "c": report_of(answered(1))})
    unknown = next(g for g in found.accuracy if g.labelled is None)
    assert {e.rank for e in unknown.entries} == {None}
    assert "does not say which photos" in ranking(found)


def test_top1_is_ranked_across_models_and_marked_runs():
    hot = answered(2, conditions=marked("throttled: under-voltage"))
    found = compare({"old": report_of(answered(15)), "new": report_of(hot, model="bb" * 32)})
    assert [(e.label, e.rank) for e in found.accuracy[0].entries] == [("new", 1), ("old", 2)]
    assert found.ranked and not found.speed_ranked


def test_threads_with_equal_answers_are_one_line():
    two = replace(ONE, threads=2)
    found = compare({"a": report_of(answered(3), answered(3, of=two)), "b": report_of(answered(3))})
    assert [(e.label, e.threads) for e in found.accuracy[0].entries] == [
        ("a", (1, 2)),
        ("b", (1,)),
    ]
    assert "1, 2 threads" in ranking(found)
    entry = found.to_json()["accuracy"][0]["entries"][0]
    assert (entry["threads"], entry["rank"], entry["alike"]) == ([1, 2], 1, 40)


@pytest.mark.parametrize(
    ("wins", "losses", "sure"),
    [(5, 0, False), (6, 0, True), (0, 6, False), (9, 1, True), (8, 2, False), (0, 0, False)],
)
def test_sign_test_has_the_values_of_the_table(wins, losses, sure):
    # Two-sided: 6 of 6 gives 0.031, 5 of 5 gives 0.0625, 9 of 10 gives 0.021, 8 of 10 gives 0.109.
    labels = [0] * (wins + losses + 3)
    first = [0] * wins + [1] * losses + [0, 1, 1]
    second = [1] * wins + [0] * losses + [0, 1, 2]
    assert better(first, second, labels) is sure
