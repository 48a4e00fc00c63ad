"""A benchmark as JSON, text, card and page."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from edge_kit.bench import BenchPlan, BenchReport, Effort, run_plan
from edge_kit.bench.conditions.conditions import Conditions, During
from edge_kit.bench.measure.measurement import Measurement
from edge_kit.bench.measure.trial import measure_in_child
from edge_kit.bench.report.card import HEAD, background, card, table
from edge_kit.bench.report.compare import compare
from edge_kit.bench.report.page import page
from edge_kit.bench.report.ranking import ranking
from edge_kit.cli import cli
from edge_kit.errors import UsageError
from edge_kit.terminal.command_line import run_group
from tests.edge_kit.bench.samples import TRIP, pi_bits, throttled
from tests.support.html import assert_standalone
from tests.support.schema import problems
from tests.system.test_docs import keys

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs/schemas/bench-1.schema.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def report(labelled):
    plan = BenchPlan(threads=(1,), effort=Effort(20, 1, 20, 3, profile=True))
    found = run_plan(
        labelled, plan, measure=lambda *what: measure_in_child(*what, monitor=throttled)
    )
    failed = Measurement(found.measurements[0].configuration, error="it died")
    every = (*found.measurements, failed)
    return replace(found, measurements=every, round_trip=TRIP, planned=3)


def test_report_read_from_json_is_equal(report, tmp_path):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(report.to_json()))
    assert BenchReport.read(file) == report
    file.write_text(json.dumps(report.to_json() | {"later": 1}))
    assert BenchReport.read(file) == report


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a benchmark: it is not JSON"),
        ("[]", "is not a benchmark of edge-kit"),
        ('{"kind": "edge-kit-bench", "schema": 99}', "has schema 99, this edge-kit reads schema 1"),
        ('{"kind": "edge-kit-bench", "schema": 1}', "a.json: version is missing"),
        (None, "cannot be read"),
    ],
)
def test_unusable_file_is_refused_in_one_sentence(tmp_path, text, why):
    file = tmp_path / "a.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=why):
        BenchReport.read(file)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"inference_ms": None, "error": 3}, r"\.error must be a string, not 3"),
        ({"conditions": []}, r"\.conditions must be an object"),
        ({"conditions": {"marks": None}}, r"\.conditions\.marks must be a list, not None"),
        ({"conditions": {"marks": [1]}}, r"\.conditions\.marks\[0\] must be a string, not 1"),
        ({"conditions": {"during": {"looks": "x"}}}, r"\.during\.looks must be a whole number"),
        ({"conditions": {"after": 3}}, r"\.conditions\.after must be an object"),
        ({"top1": {"right": 0, "total": 0, "low": 0, "high": 1}}, "total must be at least 1"),
        ({"top1_answers": [0]}, "1 top1_answers to 3 labelled photos"),
    ],
)
def test_file_edited_by_hand_is_refused_with_the_place(report, tmp_path, capsys, change, why):
    data = report.to_json()
    data["measurements"][1] |= change
    files = tmp_path / "a.json", tmp_path / "b.json"
    for file in files:
        file.write_text(json.dumps(data))
    assert run_group(cli, "edge-kit", ["bench", "compare", *map(str, files)]) == 2
    said = capsys.readouterr().err
    assert re.search(rf"a\.json: measurements\[1\].*{why}", said)
    assert "Traceback" not in said


def test_json_follows_the_schema(report, tmp_path):
    data = report.to_json()
    assert problems(data, SCHEMA, strict=True) == []
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert problems(BenchReport.read(tmp_path / "a.json").to_json(), SCHEMA, strict=True) == []


def test_schema_refuses_other_objects(report):
    data = report.to_json()
    assert problems({**data, "schema": 2}, SCHEMA)
    assert problems({k: v for k, v in data.items() if k != "model"}, SCHEMA)
    assert problems({**data, "measurements": [{}]}, SCHEMA)
    assert problems({**data, "later": 1}, SCHEMA) == []
    assert problems({**data, "later": 1}, SCHEMA, strict=True)


def test_docs_name_every_key(report):
    text = (Path(__file__).parents[3] / "docs/benchmark.md").read_text(encoding="utf-8")
    data = report.to_json()
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


def test_file_of_an_older_version_is_read(report, tmp_path):
    data = copy.deepcopy(report.to_json())
    del data["planned"]
    for m in data["measurements"]:
        for key in ("top1_set", "top1_answers", "skipped", "clock_us"):
            del m[key]
        if m["conditions"]:
            del m["conditions"]["look_ms"]
            for key in ("throttled", "throttled_now", "temperatures_c", "clocks_mhz"):
                del m["conditions"]["during"][key]
    assert problems(data, SCHEMA) == []
    (tmp_path / "a.json").write_text(json.dumps(data))
    old = BenchReport.read(tmp_path / "a.json")
    assert old.measurements[0].top1.total == 3 and old.measurements[0].top1_set is None
    assert page(old)
    assert "does not say which photos" in ranking(compare({"old": old, "new": report}))


def test_background_shows_state_before_during_and_after(report):
    head, *rows = background(report.measurements)
    assert len(rows) == 2  # nothing was started for the third
    row = dict(zip(head, rows[0], strict=True))
    assert (row["°C before"], row["°C most"], row["°C after"]) == ("61.5",) * 3
    assert (row["MHz before"], row["MHz least"], row["MHz after"]) == ("1400.0",) * 3
    assert row["throttling"] == "0x50005: under-voltage and throttled, now and since boot"


def test_background_tells_changing_throttling_bits_apart(report):
    first = report.measurements[0]
    conditions = replace(first.conditions, before=pi_bits(0), after=pi_bits(0x50000))
    (_, row) = background([replace(first, conditions=conditions)])
    assert row[-1] == (
        "during 0x50005: under-voltage and throttled, now and since boot; "
        "after 0x50000: under-voltage and throttled since boot, not now"
    )


def test_background_of_a_board_without_sensors_is_empty(report):
    nothing = Conditions(during=During(looks=1))
    assert background([replace(report.measurements[0], conditions=nothing)]) == []


def test_card_escapes_the_board_name(report):
    odd = replace(report, board={**report.board, "model": "Pi | <b>4</b>"})
    lines = card(odd).splitlines()
    assert lines[0] == "## edge-kit bench: Pi | <b>4</b>"
    assert any(line.startswith("| board | Pi \\| <b>4</b>") for line in lines)
    at = lines.index(f"| {' | '.join(HEAD)} |")
    rows = lines[at + 2 : at + 2 + len(report.measurements)]
    assert [row.split(" | ")[1] for row in rows] == ["1", "1", "1"]
    assert "0.667 (0.21-0.94) of 3" in rows[0]


def test_page_is_standalone_and_shows_marks(report):
    first, *rest = report.measurements
    died = Measurement(first.configuration, error="<died>")
    odd = replace(
        report, board={**report.board, "model": "Pi <4>"}, measurements=(first, *rest, died)
    )
    html = page(odd)
    assert_standalone(html)
    assert "edge-kit bench: Pi &lt;4&gt;" in html
    assert "1 thread: throttled: clock held down" in html and "failed: &lt;died&gt;" in html
    assert html.count("<svg") == 6
    quiet = replace(first, conditions=replace(first.conditions, marks=()))
    assert "Not to be trusted" not in page(replace(report, measurements=(quiet,)))


def test_table_shows_the_reason_of_a_failed_engine(report):
    assert table(report).splitlines()[3].endswith("failed: it died")


def test_report_without_figures_is_shown(report):
    nothing = replace(report, measurements=report.measurements[-1:])
    assert nothing.fastest is None
    assert "it died" in card(nothing) and "it died" in page(nothing)
