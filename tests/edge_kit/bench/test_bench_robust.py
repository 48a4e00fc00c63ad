"""What `edge-kit bench` writes down is what it promises, and what goes wrong costs no figures."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_kit.bench import BenchReport, Effort, Plan, run_plan
from edge_kit.bench.conditions.conditions import Watch
from edge_kit.bench.conditions.state import BoardState
from edge_kit.bench.conditions.throttling import Throttling
from edge_kit.bench.measure.latency import Latency, clock_cost_us
from edge_kit.bench.measure.measurement import Measurement
from edge_kit.bench.measure.roundtrip import RoundTrip
from edge_kit.bench.measure.trial import measure_in_child
from edge_kit.bench.report.background import background
from edge_kit.bench.report.compare import compare
from edge_kit.bench.report.page import page
from edge_kit.bench.report.ranking import standings
from edge_kit.cli import cli
from edge_kit.errors import EdgeKitError, UsageError
from edge_kit.terminal.command_line import run_group
from tests.support.labelled import add_reference
from tests.support.schema import problems
from tests.support.tiny import make_bundle
from tests.support.tiny_tflite import make_bundle_with_both

SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs/schemas/bench-1.schema.json").read_text(encoding="utf-8")
)
FEW = ("--runs", "20", "--warmup", "1", "--frames", "3", "--max-secs", "20", "--threads", "1")


def pi():
    """A watch over a Raspberry Pi that has seen better days."""
    state = BoardState(61.5, 1400.0, Throttling(0x50005), True, 3)
    return Watch(lambda: state, lambda: 0.0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return add_reference(make_bundle_with_both(tmp_path_factory.mktemp("robust") / "bundle"))


@pytest.fixture(scope="module")
def report(bundle):
    plan = Plan(threads=(1,), effort=Effort(20, 1, 20, 3, profile=True))
    found = run_plan(bundle, plan, measure=lambda *what: measure_in_child(*what, watch=pi))
    failed = Measurement(found.measurements[0].configuration, error="it died")
    trip = RoundTrip("mqtt://b", "onnx", 1, 3, 3, 98.0, Latency.of([0.01]))
    return replace(found, measurements=[*found.measurements, failed], round_trip=trip, planned=3)


def call(*args):
    return run_group(cli, "edge-kit", ["bench", *map(str, args)])


def test_what_is_written_follows_the_schema_to_the_last_key(report, tmp_path):
    data = report.to_json()
    assert problems(data, SCHEMA, strict=True) == []
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert problems(BenchReport.read(tmp_path / "a.json").to_json(), SCHEMA, strict=True) == []


def test_the_schema_refuses_what_is_no_report(report):
    data = report.to_json()
    assert problems({**data, "schema": 2}, SCHEMA)
    assert problems({k: v for k, v in data.items() if k != "model"}, SCHEMA)
    assert problems({**data, "measurements": [{}]}, SCHEMA)
    assert problems({**data, "later": 1}, SCHEMA) == []
    assert problems({**data, "later": 1}, SCHEMA, strict=True)


def test_files_of_before_top1_had_a_set_are_still_read(report, tmp_path):
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
    assert "does not say which photos" in standings(compare({"old": old, "new": report}))


def test_the_state_is_told_before_during_and_after(report):
    head, *rows = background(report.measurements)
    assert len(rows) == 2  # nothing was started for the third
    row = dict(zip(head, rows[0], strict=True))
    assert (row["°C before"], row["°C most"], row["°C after"]) == ("61.5",) * 3
    assert (row["MHz before"], row["MHz least"], row["MHz after"]) == ("1400.0",) * 3
    assert row["throttling"] == "0x50005: under-voltage and throttled, now and since boot"


def test_bits_that_change_meanwhile_are_told_apart(report):
    first = report.measurements[0]
    conditions = copy.deepcopy(dict(first.conditions))
    conditions["before"]["throttled"] = "0x0"
    conditions["after"]["throttled"] = "0x50000"
    (_, row) = background([replace(first, conditions=conditions)])
    assert row[-1] == (
        "during 0x50005: under-voltage and throttled, now and since boot; "
        "after 0x50000: under-voltage and throttled since boot, not now"
    )


def test_a_board_that_tells_nothing_has_no_table(report):
    nothing = {"before": {}, "during": {}, "after": {}, "other_load": None}
    assert background([replace(report.measurements[0], conditions=nothing)]) == []


def test_its_own_cost_is_stated_by_every_run(bundle, capsys):
    assert call(bundle.root, *FEW, "--engine", "onnx") == 0
    line = next(s for s in capsys.readouterr().out.splitlines() if "own cost" in s)
    assert "µs to a call" in line and "% of the median" in line and "a look at the board" in line
    assert 0 <= clock_cost_us(100) < 1000


def edge(*args, **more):
    # In the background of a shell SIGINT is ignored, and children inherit that.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "edge_kit.cli", "bench"]
    return subprocess.Popen(
        [*command, *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_before_the_first_measurement_ends_with_a_sentence(bundle, tmp_path, number):
    card = tmp_path / "card.md"
    effort = ("--runs", "1000000", "--warmup", "1000000", "--max-secs", "3600", "--frames", "1")
    slow = edge(bundle.root, "--threads", "1", *effort, "--no-top1", "--json", "--markdown", card)
    assert slow.stderr.readline() == "edge-kit: 1 of 2: onnx int8, 1 thread\n"
    slow.send_signal(number)
    out, err = slow.communicate(timeout=60)
    assert (slow.returncode, out) == (130, "")
    assert err.strip().endswith("edge-kit: interrupted before anything was measured")
    assert not card.exists()


def test_an_interrupt_after_the_first_writes_a_report_of_it(bundle, tmp_path, capsys, monkeypatch):
    calls = []

    def measure(*what):
        calls.append(what)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure_in_child(*what, watch=pi)

    monkeypatch.setattr("edge_kit.bench.plan.run_plan.__kwdefaults__", {"measure": measure})
    card = tmp_path / "card.md"
    assert call(bundle.root, *FEW, "--json", "--markdown", card) == 130
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert (len(data["measurements"]), data["planned"]) == (1, 2)
    assert problems(data, SCHEMA, strict=True) == []
    assert "edge-kit: interrupted after 1 of 2 configurations" in said.err
    assert card.read_text().startswith("## edge-kit bench")


def test_a_broker_that_fails_at_the_end_costs_no_figures(bundle, capsys, monkeypatch):
    def gone(*_args, **_more):
        raise EdgeKitError("the broker went away")

    monkeypatch.setattr("edge_kit.bench.measure.roundtrip.reach", lambda *_args: None)
    monkeypatch.setattr("edge_kit.bench.measure.roundtrip.measure_round_trip", gone)
    broker = ("--broker", "mqtt://127.0.0.1:1")
    assert call(bundle.root, *FEW, "--engine", "onnx", *broker, "--json") == 1
    said = capsys.readouterr()
    assert len(json.loads(said.out)["measurements"]) == 1
    assert said.err.splitlines()[-1] == "edge-kit: error: the broker went away"


def test_a_full_disk_costs_one_file_and_no_figures(bundle, tmp_path, capsys):
    card = tmp_path / "card.md"
    args = (*FEW, "--engine", "onnx", "--html", "/dev/full", "--markdown", card)
    assert call(bundle.root, *args) == 1
    said = capsys.readouterr()
    assert said.out.startswith("model")
    assert card.exists()
    assert "cannot write /dev/full: No space left on device" in said.err


def test_a_file_on_a_read_only_disk_is_refused_at_once(bundle, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    assert call(bundle.root, *FEW, "--html", tmp_path / "a.html") == 2
    said = capsys.readouterr()
    assert "or the disk is read-only" in said.err and "1 of" not in said.err


def test_a_card_is_replaced_whole_or_not_at_all(bundle, tmp_path, capsys):
    card = tmp_path / "card.md"
    card.write_text("old")
    assert call(bundle.root, *FEW, "--engine", "onnx", "--markdown", card) == 0
    assert card.read_text().startswith("## edge-kit bench")
    assert [p.name for p in tmp_path.iterdir()] == ["card.md"]
    capsys.readouterr()


def test_without_a_place_for_temporary_files_only_the_profile_is_missing(
    bundle, tmp_path, monkeypatch
):
    code = "import tempfile, sys; tempfile.tempdir = sys.argv.pop(1)\n"
    code += "from edge_kit.bench.measure.child import _main; sys.exit(_main())"
    file = next(f for f in bundle.end_files() if f.engine == "onnx")
    effort = Effort(20, 1, 20, 3, profile=True)
    none = str(tmp_path / "none")
    what = [str(bundle.root), file.path, "--threads=1", *effort.arguments()]
    found = measure_in_child(
        bundle, file, 1, effort, command=lambda: [sys.executable, "-c", code, none, *what]
    )
    assert found.error == "" and found.inference.count == 20 and found.layers is None
    assert any(why.startswith(f"no profile of {file.path}: ") for why in found.skipped)


def test_nothing_is_written_but_what_was_asked_for(tmp_path):
    # A home of its own, so that whatever lands there is seen.
    bundle = add_reference(make_bundle(tmp_path / "bundle"))
    home, here, temporary = (tmp_path / n for n in ("home", "here", "temporary"))
    for folder in (home, here, temporary):
        folder.mkdir()
    env = {**os.environ, "HOME": str(home), "TMPDIR": str(temporary)}
    env.pop("XDG_CACHE_HOME", None)
    before = {p: p.stat().st_mtime_ns for p in sorted(bundle.root.rglob("*"))}
    run = edge(bundle.root, *FEW, "--profile", "--html", "a.html", cwd=here, env=env)
    _out, err = run.communicate(timeout=120)
    assert run.returncode == 0, err
    assert [p.name for p in here.iterdir()] == ["a.html"]
    assert list(home.rglob("*")) == [] and list(temporary.rglob("*")) == []
    assert {p: p.stat().st_mtime_ns for p in sorted(bundle.root.rglob("*"))} == before


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("conditions", "marks"), 5),
        (("conditions", "marks"), None),
        (("conditions", "marks"), "throttled"),
        (("conditions",), 5),
        (("inference_ms", "p50"), float("nan")),
        (("inference_ms", "p50"), float("inf")),
        (("inference_ms", "p50"), -1.0),
        (("inference_ms", "p50"), 1e9),
        (("inference_ms", "count"), 0),
        (("top1", "right"), 4),
        (("top1", "right"), 1),
        (("top1", "low"), float("nan")),
        (("top1", "high"), 1.5),
        (("conditions",), {"throttled": "the kernel held the clock down", "marks": []}),
        (("conditions",), {"disturbed": True}),
        (("top1", "total"), 0),
        (("top1_answers",), [0]),
        (("top1",), None),
        (("configuration", "threads"), 1e999),
    ],
)
def test_a_senseless_value_is_refused(report, tmp_path, capsys, place, value):
    data = copy.deepcopy(report.to_json())
    at = data["measurements"][0]
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    assert call("compare", tmp_path / "a.json", tmp_path / "b.json") == 2
    said = capsys.readouterr().err
    assert "a.json is damaged" in said and len(said.splitlines()) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
PLACES = [
    ("kind",), ("schema",), ("version",), ("measured_at",), ("board",), ("board", "model"),
    ("model",), ("model", "model_hash"), ("effort",), ("measurements",), ("measurements", 0),
    ("round_trip",), ("round_trip", "round_trip_ms"), ("planned",),
    *(
        ("measurements", 0, key)
        for key in (
            "configuration", "error", "inference_ms", "calls_ms", "memory_bytes", "top1",
            "top1_set", "top1_answers", "pipeline", "layers", "conditions", "skipped", "clock_us",
        )
    ),
    ("measurements", 0, "configuration", "threads"), ("measurements", 0, "inference_ms", "p50"),
    ("measurements", 0, "top1", "total"), ("measurements", 0, "top1_set", "labels"),
    ("measurements", 0, "conditions", "marks"),
]  # fmt: skip


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_any_json_in_any_place_is_compared_or_refused(report, tmp_path, place, value):
    data = copy.deepcopy(report.to_json())
    at = data
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    file = tmp_path / "odd.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    try:
        odd = BenchReport.read(file)
    except UsageError as error:
        assert "\n" not in str(error)
        return
    found = compare({"odd": odd, "good": report})
    assert standings(found)
    json.dumps(found.to_json())
