"""``edge-kit bench`` as people call it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from edge_kit.cli import cli
from edge_kit.terminal.command_line import run_group
from tests.support.tiny_tflite import make_bundle_with_both

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "bench_overhead.py"
FEW = ("--runs", "25", "--warmup", "2", "--frames", "4", "--max-secs", "20")


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    return make_bundle_with_both(tmp_path_factory.mktemp("both") / "bundle").root


def call(*args):
    return run_group(cli, "edge-kit", ["bench", *map(str, args)])


def test_a_table_a_card_and_a_page(both, tmp_path, capsys):
    card, page = tmp_path / "card.md", tmp_path / "bench.html"
    assert call(both, *FEW, "--threads", "1", "--markdown", card, "--html", page) == 0
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
    args = (both, *FEW, "--engine", "tflite", "--threads", "2,1,2", "--json")
    assert call(*args) == 0
    text = capsys.readouterr().out
    data = json.loads(text)
    assert [m["configuration"]["threads"] for m in data["measurements"]] == [2, 1]
    # What other tests do meanwhile may disturb the runs; here that is beside the point.
    for m in data["measurements"]:
        m["conditions"] |= {"marks": [], "throttled": "", "disturbed": False}
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


def test_files_of_one_name_are_told_apart(tmp_path, capsys):
    assert call("compare", "x.json", "x.json") == 2
    assert "a file is given twice" in capsys.readouterr().err
    assert call("compare", tmp_path / "a.json", tmp_path / "b.json") == 2
    assert "a.json cannot be read (No such file" in capsys.readouterr().err


@pytest.mark.broker
def test_with_a_broker_bytes_and_round_trip(both, worker, mosquitto, photo_folder, capsys):
    seen = len(worker.seen)
    broker = ("--broker", mosquitto.url, "--device-id", "trial", "--fps", "50")
    args = (both, *FEW, "--engine", "onnx", "--threads", "1", *broker)
    assert call(*args, "--json") == 0
    trip = json.loads(capsys.readouterr().out)["round_trip"]
    assert (trip["sent"], trip["answered"]) == (4, 4)
    assert trip["round_trip_ms"]["count"] == 4 and trip["bytes_mean"] > 64
    assert trip["broker"] == mosquitto.url
    assert len(worker.seen) == seen + 4


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
def test_mistakes_are_said_before_anything_is_measured(both, tmp_path, capsys, args, code, said):
    given = [a.format(both=both, tmp=tmp_path) for a in args]
    assert call(*given) == code
    error = capsys.readouterr().err
    assert said in error
    assert "edge-kit: 1 of" not in error
    assert "Traceback" not in error


def test_page_without_jinja_is_refused_before_anything_is_measured(
    both, tmp_path, capsys, monkeypatch
):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec",
        lambda name, *more: None if name == "jinja2" else find(name, *more),
    )
    assert call(both, *FEW, "--html", tmp_path / "a.html") == 4
    error = capsys.readouterr().err
    assert error == (
        "edge-kit: error: edge-kit bench --html needs Jinja2, which is not installed; "
        "install it with: pip install 'edge-kit[pages]'\n"
    )
    # All other outputs do without.
    few = (*FEW, "--engine", "onnx", "--threads", "1", "--no-top1")
    assert call(both, *few, "--json", "--markdown", tmp_path / "a.md") == 0
    assert len(json.loads(capsys.readouterr().out)["measurements"]) == 1


def test_an_engine_that_the_bundle_lacks(tiny_bundle, capsys):
    assert call(tiny_bundle.root, "--engine", "tflite") == 4
    assert "has no model for tflite; it has: onnx" in capsys.readouterr().err


def test_when_no_engine_works_the_reasons_are_the_error(both, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None)
    assert call(both, *FEW, "--threads", "1") == 4
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("edge-kit: error: nothing could be measured: the engine 'onnx' needs")


def test_help_names_both_ways(capsys):
    assert call("--help") == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: edge-kit bench [OPTIONS] BUNDLE\n")
    assert "edge-kit bench compare" in said
    assert call("compare", "--help") == 0
    assert "Usage: edge-kit bench compare [OPTIONS] FILES..." in capsys.readouterr().out


def test_the_overhead_of_the_benchmark_is_measured(both, tmp_path):
    command = [sys.executable, SCRIPT, "--bundle", both, "--engine", "onnx", "--json"]
    done = subprocess.run(
        [*map(str, command), "--pairs", "40", "--threads", "1"],
        capture_output=True, text=True, check=False, timeout=120,
        env={"XDG_CACHE_HOME": str(tmp_path), "PATH": "/usr/bin"},
    )  # fmt: skip
    figures = json.loads(done.stdout)
    assert figures["pairs"] == 40
    assert figures["bench_p50_ms"] > 0 and figures["bare_p50_ms"] > 0
    # Not how large it is: the tiny model's call is shorter than anything that disturbs it.
    off = figures["off_p10" if figures["disturbed"] else "off"]
    assert done.returncode == (0 if abs(off) <= figures["budget"] else 1)
