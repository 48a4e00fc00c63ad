"""``edge-kit bench`` as people call it, interrupts and full disks included."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge_kit.bench.measure.latency import clock_cost_us
from edge_kit.bench.measure.trial import measure_in_child
from edge_kit.cli import cli
from edge_kit.errors import EdgeKitError
from edge_kit.terminal.command_line import run_group
from tests.edge_kit.bench.samples import answered, marked, report_of, throttled
from tests.support.labelled import add_reference
from tests.support.schema import problems
from tests.support.tiny import make_bundle
from tests.support.tiny_splits import make_bundle_with_two_splits

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "bench_overhead.py"


SCHEMA = json.loads(
    (Path(__file__).parents[3] / "docs/schemas/bench-1.schema.json").read_text(encoding="utf-8")
)


FEW = ("--runs", "20", "--warmup", "1", "--frames", "3", "--max-secs", "20", "--threads", "1")


def call(*args):
    return run_group(cli, "edge-kit", ["bench", *map(str, args)])


def edge(*args, **more):
    # In the background of a shell SIGINT is ignored, and children inherit that.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "edge_kit.cli", "bench"]
    return subprocess.Popen(
        [*command, *map(str, args)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more,
    )  # fmt: skip


def test_bench_writes_table_card_and_page(both, tmp_path, capsys):
    card, page = tmp_path / "card.md", tmp_path / "bench.html"
    assert call(both.root, *FEW, "--threads", "1", "--markdown", card, "--html", page) == 0
    said = capsys.readouterr()
    head, onnx, tflite = said.out.splitlines()[:3]
    assert head.split()[:3] == ["model", "threads", "p50"]
    assert (onnx.split()[:3], tflite.split()[:3]) == (
        ["onnx", "int8", "1"],
        ["tflite", "int8", "1"],
    )
    assert "edge-kit: 1 of 2: onnx int8, 1 thread" in said.err
    assert card.read_text().startswith("## edge-kit bench: ")
    assert page.read_text().startswith("<!doctype html>")


def test_json_is_one_object_that_compare_reads(both, tmp_path, capsys):
    args = (both.root, *FEW, "--engine", "tflite", "--threads", "2,1,2", "--json")
    assert call(*args) == 0
    text = capsys.readouterr().out
    data = json.loads(text)
    assert [m["configuration"]["threads"] for m in data["measurements"]] == [2, 1]
    # What other tests do meanwhile may disturb the runs; here that is beside the point.
    for m in data["measurements"]:
        m["conditions"] |= {"marks": [], "throttled": [], "disturbed": False}
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    first.write_text(json.dumps(data))
    second.write_text(json.dumps(data))
    assert call("compare", first, second) == 0
    lines = capsys.readouterr().out.splitlines()
    # Two groups, twice the same figures.
    assert [line.split()[0] for line in lines if " ms" in line] == ["1."] * 4
    assert call("compare", first, second, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["groups"]) == 2
    data["model"]["model_hash"] = "0" * 64
    second.write_text(json.dumps(data))
    assert call("compare", first, second) == 2
    said = capsys.readouterr()
    assert "not ranked" in said.out
    assert "nothing here can be ranked" in said.err


def test_compare_says_when_only_top1_is_ranked(tmp_path, capsys):
    for name in ("a", "b"):
        report = report_of(answered(1, conditions=marked("disturbed: other programs")))
        (tmp_path / f"{name}.json").write_text(json.dumps(report.to_json()))
    assert call("compare", tmp_path / "a.json", tmp_path / "b.json") == 0
    said = capsys.readouterr()
    assert "top-1 alone is ranked, no speed" in said.err
    assert said.out.count("40 of 40 answered as by the first") == 2


def test_compare_refuses_a_file_given_twice(tmp_path, capsys):
    assert call("compare", "x.json", "x.json") == 2
    assert "a file is given twice" in capsys.readouterr().err
    assert call("compare", tmp_path / "a.json", tmp_path / "b.json") == 2
    assert "a.json cannot be read (No such file" in capsys.readouterr().err


@pytest.mark.broker
def test_bench_with_broker_measures_bytes_and_round_trip(
    both, worker, mosquitto, photo_folder, capsys
):
    seen = len(worker.seen)
    broker = ("--broker", mosquitto.url, "--device-id", "trial", "--fps", "50")
    args = (both.root, *FEW, "--engine", "onnx", "--threads", "1", *broker)
    assert call(*args, "--json") == 0
    trip = json.loads(capsys.readouterr().out)["round_trip"]
    assert (trip["sent"], trip["answered"]) == (3, 3)
    assert trip["round_trip_ms"]["count"] == 3 and trip["bytes_mean"] > 64
    assert trip["broker"] == mosquitto.url
    assert len(worker.seen) == seen + 3


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("none.ekb",), 3, "there is no bundle at none.ekb"),
        (("{both}", "--threads", "two"), 2, "not a list of numbers such as 1,2,4"),
        (("{both}", "--threads", "0"), 2, "1 to 1024 threads"),
        (("{both}", "--photos", "{tmp}/none"), 5, "none"),
        (("{both}", "--markdown", "{tmp}/none/card.md"), 2, "there is no directory"),
        (("{both}", "--html", "{tmp}"), 2, "it is a directory"),
        (("{both}", "--broker", "mqtt://127.0.0.1:1"), 6, "nothing listens at"),
        (("{both}", "--broker", "http://h"), 2, "is not mqtt or mqtts"),
        ((), 2, "Missing argument 'BUNDLE'"),
    ],
)
def test_mistakes_are_reported_before_measuring(both, tmp_path, capsys, args, code, said):
    given = [a.format(both=both.root, tmp=tmp_path) for a in args]
    assert call(*given) == code
    error = capsys.readouterr().err
    assert said in error
    assert "edge-kit: 1 of" not in error
    assert "Traceback" not in error


def test_page_without_jinja_is_refused_before_measuring(both, tmp_path, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name == "jinja2" else find(name, *more),
    )
    assert call(both.root, *FEW, "--html", tmp_path / "a.html") == 4
    error = capsys.readouterr().err
    assert error == (
        "edge-kit: error: edge-kit bench --html needs Jinja2, which is not installed; "
        "install it with: pip install 'edge-kit[pages]'\n"
    )
    # All other outputs do without.
    few = (*FEW, "--engine", "onnx", "--threads", "1", "--no-top1")
    assert call(both.root, *few, "--json", "--markdown", tmp_path / "a.md") == 0
    assert len(json.loads(capsys.readouterr().out)["measurements"]) == 1


def test_engine_missing_from_the_bundle_is_named(tiny_bundle, capsys):
    assert call(tiny_bundle.root, "--engine", "tflite") == 4
    assert "has no model for tflite; it has: onnx" in capsys.readouterr().err


def test_no_working_engine_ends_with_the_reasons(both, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None)
    assert call(both.root, *FEW, "--threads", "1") == 4
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("edge-kit: error: nothing could be measured: the engine 'onnx' needs")


def test_help_names_both_commands(capsys):
    assert call("--help") == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: edge-kit bench [OPTIONS] BUNDLE\n")
    assert "edge-kit bench compare" in said
    assert call("compare", "--help") == 0
    assert "Usage: edge-kit bench compare [OPTIONS] FILES..." in capsys.readouterr().out


def test_overhead_script_measures_bench_against_bare_loop(both, tmp_path):
    command = [sys.executable, SCRIPT, "--bundle", both.root, "--engine", "onnx", "--json"]
    done = subprocess.run(
        [*map(str, command), "--pairs", "40", "--threads", "1"],
        capture_output=True, text=True, check=False, timeout=120,
        env={
            "XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin",
            "PYTHONPATH": str(SCRIPT.parents[1]),
        },
    )  # fmt: skip
    figures = json.loads(done.stdout)
    assert figures["pairs"] == 40
    assert figures["bench_p50_ms"] > 0 and figures["bare_p50_ms"] > 0
    # Not how large it is: the tiny model's call is shorter than anything that disturbs it.
    off = figures["off_p10" if figures["disturbed"] else "off"]
    assert done.returncode == (0 if abs(off) <= figures["budget"] else 1)


def test_every_run_states_its_own_cost(labelled, capsys):
    assert call(labelled.root, *FEW, "--engine", "onnx") == 0
    line = next(s for s in capsys.readouterr().out.splitlines() if "own cost" in s)
    assert "µs to a call" in line and "% of the median" in line and "a look at the board" in line
    assert 0 <= clock_cost_us(100) < 1000


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_before_the_first_measurement_ends_with_a_sentence(labelled, tmp_path, number):
    card = tmp_path / "card.md"
    effort = ("--runs", "1000000", "--warmup", "1000000", "--max-secs", "3600", "--frames", "1")
    slow = edge(labelled.root, "--threads", "1", *effort, "--no-top1", "--json", "--markdown", card)
    assert slow.stderr.readline() == "edge-kit: 1 of 2: onnx int8, 1 thread\n"
    slow.send_signal(number)
    out, err = slow.communicate(timeout=60)
    assert (slow.returncode, out) == (130, "")
    assert err.strip().endswith("edge-kit: interrupted before anything was measured")
    assert not card.exists()


def test_interrupt_after_the_first_measurement_writes_it(labelled, tmp_path, capsys, monkeypatch):
    calls = []

    def measure(*what):
        calls.append(what)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure_in_child(*what, monitor=throttled)

    monkeypatch.setattr("edge_kit.bench.plan.run_plan.__kwdefaults__", {"measure": measure})
    card = tmp_path / "card.md"
    assert call(labelled.root, *FEW, "--json", "--markdown", card) == 130
    said = capsys.readouterr()
    data = json.loads(said.out)
    assert (len(data["measurements"]), data["planned"]) == (1, 2)
    assert problems(data, SCHEMA, strict=True) == []
    assert "edge-kit: interrupted after 1 of 2 configurations" in said.err
    assert card.read_text().startswith("## edge-kit bench")


def test_broker_failing_at_the_end_keeps_the_figures(labelled, capsys, monkeypatch):
    def gone(*_args, **_more):
        raise EdgeKitError("the broker went away")

    monkeypatch.setattr("edge_kit.bench.measure.roundtrip.reach", lambda *_args: None)
    monkeypatch.setattr("edge_kit.bench.measure.roundtrip.measure_round_trip", gone)
    broker = ("--broker", "mqtt://127.0.0.1:1")
    assert call(labelled.root, *FEW, "--engine", "onnx", *broker, "--json") == 1
    said = capsys.readouterr()
    assert len(json.loads(said.out)["measurements"]) == 1
    assert said.err.splitlines()[-1] == "edge-kit: error: the broker went away"


def test_full_disk_keeps_the_figures(labelled, tmp_path, capsys):
    card = tmp_path / "card.md"
    args = (*FEW, "--engine", "onnx", "--html", "/dev/full", "--markdown", card)
    assert call(labelled.root, *args) == 1
    said = capsys.readouterr()
    assert said.out.startswith("model")
    assert card.exists()
    assert "cannot write /dev/full: No space left on device" in said.err


def test_file_on_a_read_only_disk_is_refused_before_measuring(
    labelled, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda _path, mode: mode != os.W_OK)
    assert call(labelled.root, *FEW, "--html", tmp_path / "a.html") == 2
    said = capsys.readouterr()
    assert "or the disk is read-only" in said.err and "1 of" not in said.err


def test_bench_writes_only_the_files_asked_for(tmp_path):
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


def test_named_split_is_measured_with_its_own_files_and_rule(tmp_path, capsys):
    bundle = make_bundle_with_two_splits(tmp_path / "both").root
    assert call(bundle, *FEW, "--split", "lite", "--no-top1", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"]["threshold"] == -1.0
    files = [m["configuration"]["file"] for m in report["measurements"]]
    assert files == ["end/int8.tflite"]


def test_unknown_split_is_refused_with_the_names(tmp_path, capsys):
    bundle = make_bundle_with_two_splits(tmp_path / "both").root
    assert call(bundle, *FEW, "--split", "deep") == 3
    assert "no split 'deep'; it has: pool, lite" in capsys.readouterr().err
