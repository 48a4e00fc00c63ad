"""Ranking what is comparable, and only that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.measurement import Configuration, Measurement
from edge_kit.bench.report.compare import compare
from edge_kit.bench.report.ranking import standings
from edge_kit.bench.report.report import BenchReport
from edge_kit.errors import UsageError

ONE = Configuration("end/a.onnx", "onnx", "end", "int8", "any", 1000, 1)


def measured(ms, configuration=ONE, calls=50, **more):
    latency = Latency.of([ms / 1e3] * calls)
    return Measurement(configuration, inference=latency, runtime="onnxruntime 1", **more)


def report(*measurements, model="aa" * 32, board="Pi"):
    about = {"name": "m", "model_hash": model, "threshold": 0.5}
    return BenchReport("0.1.0", 0.0, {"model": board, "arch": "aarch64"}, about, {}, measurements)


def ranks(found):
    return [[(e.label, e.rank) for e in g.entries] for g in found.groups]


def test_the_faster_board_comes_first():
    found = compare({"slow": report(measured(20)), "fast": report(measured(10))})
    assert ranks(found) == [[("fast", 1), ("slow", 2)]]
    assert found.ranked
    lines = standings(found).splitlines()
    assert lines[0] == f"onnx int8, 1 thread, model {'aa' * 8}"
    assert lines[1].split()[:4] == ["1.", "10.00", "ms", "1.00"] and "fast (Pi" in lines[1]
    assert lines[2].split()[:4] == ["2.", "20.00", "ms", "2.00"]


def test_medians_that_hardly_differ_share_a_rank():
    found = compare(
        {"a": report(measured(10)), "b": report(measured(10.4)), "c": report(measured(12))}
    )
    assert ranks(found) == [[("a", 1), ("b", 1), ("c", 3)]]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (report(measured(5), model="bb" * 32), "no other file measured this model"),
        (
            report(measured(5, replace(ONE, threads=4))),
            "no other file measured onnx int8, 1 thread",
        ),
        (
            report(measured(5, replace(ONE, engine="tflite"))),
            "no other file measured onnx int8 of this model",
        ),
        (
            report(measured(5, replace(ONE, precision="float32", role="full"))),
            "no other file measured onnx int8 of this model",
        ),
    ],
    ids=["model", "threads", "engine", "precision"],
)
def test_other_work_is_not_ranked(other, why):
    found = compare({"a": report(measured(10)), "b": other})
    assert len(found.groups) == 2
    assert not found.ranked
    mine = next(g for g in found.groups if g.entries[0].label == "a")
    assert [e.unfit for e in mine.entries] == [why]
    assert f"not ranked: {why}" in standings(found)


def test_two_files_of_one_bundle_are_not_ranked_against_each_other():
    twice = report(measured(10), measured(20, replace(ONE, file="end/b.onnx")))
    found = compare({"a": twice, "b": report(measured(5, replace(ONE, threads=4)))})
    assert not found.ranked


def test_what_is_alone_beside_spoiled_runs_is_not_ranked():
    spoiled = report(measured(5, conditions={"marks": ["throttled: under-voltage"]}))
    found = compare({"a": report(measured(10)), "b": spoiled})
    assert ranks(found) == [[("a", None), ("b", None)]]
    assert found.groups[0].entries[0].unfit == "nothing fit to be ranked against it"


@pytest.mark.parametrize(
    ("spoiled", "why"),
    [
        (measured(5, conditions={"marks": ["throttled: under-voltage"]}), "throttled"),
        (measured(5, conditions={"marks": ["disturbed: other programs"]}), "disturbed"),
        (measured(5, calls=19), "only 19 calls"),
        (Measurement(ONE, error="it died"), "failed: it died"),
    ],
    ids=["throttled", "disturbed", "few", "failed"],
)
def test_a_spoiled_run_is_shown_and_not_ranked(spoiled, why):
    found = compare({"bad": report(spoiled), "a": report(measured(10)), "b": report(measured(20))})
    assert ranks(found) == [[("a", 1), ("b", 2), ("bad", None)]]
    last = standings(found).splitlines()[-1]
    assert last.startswith("   -") and f"not ranked: {why}" in last


def test_groups_with_a_ranking_come_first_and_all_is_in_the_json():
    four = replace(ONE, threads=4)
    found = compare({"a": report(measured(1, four), measured(10)), "b": report(measured(20))})
    data = found.to_json()
    assert [g["threads"] for g in data["groups"]] == [1, 4]
    assert [e["rank"] for e in data["groups"][0]["entries"]] == [1, 2]
    assert data["groups"][1]["entries"][0]["unfit"] == "no other file measured onnx int8, 4 threads"
    assert data["groups"][0]["entries"][0]["inference_ms"]["p50"] == 10.0


def test_calls_that_took_no_time_keep_their_rank_in_the_text():
    found = compare({"a": report(measured(0)), "b": report(measured(10))})
    assert [line.split()[0] for line in standings(found).splitlines()[1:]] == ["1.", "2."]


def test_names_of_a_strangers_file_do_not_steer_the_terminal():
    odd = report(measured(5), board="Pi\x1b[2J\nmine")
    text = standings(compare({"a": odd, "b": report(measured(10))}))
    assert "a (Pi\\x1b[2J\\nmine; 0.1.0" in text


def test_one_file_is_no_comparison():
    with pytest.raises(UsageError, match="one benchmark cannot be compared"):
        compare({"a": report(measured(1))})
