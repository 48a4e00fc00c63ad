"""Device and worker as processes, with two splits in one bundle and with a bundle of schema 1."""

from __future__ import annotations

import json

import pytest

from edge_kit.bundle.tuning import Tuning, write_tuning
from edge_kit.host.child_process import module_command
from edge_kit.host.json_process import Child
from tests.support.device import PHOTOS, WAIT_S, finish
from tests.support.tiny import CLASSES
from tests.support.tiny_splits import SCHEMA1, copy_schema1, make_bundle_with_two_splits

pytestmark = pytest.mark.broker

COLOURED = range(1, PHOTOS, 2)  # photo n is of the colour n % 3; the others are grey


@pytest.fixture
def start_worker(mosquitto, tmp_path):
    """Start ``cloud-kit worker`` with a bundle."""
    children = []

    def start(bundle) -> None:
        arguments = module_command(
            "cloud_kit.cli", "worker", "--bundle", str(bundle), "--broker", mosquitto.url,
            "--wait-ms", "0", "--json",
        )  # fmt: skip
        child = Child("the worker", arguments, tmp_path / "worker.log")
        children.append(child.__enter__())
        child.wait_for("connected", WAIT_S)

    yield start
    for child in children:
        child.__exit__(None, None, None)


def run(edge, *arguments, **options):
    """Return the cloud's class of each frame, the summary, and standard error."""
    code, lines, err = finish(edge("--json", *arguments, **options))
    assert code == 0, err
    answers = {n["index"]: n["class"] for n in lines if n.get("tier") == "cloud"}
    return answers, lines[-1]["summary"], err


def test_each_split_runs_with_its_own_engine_rule_and_tail(edge, mosquitto, start_worker, tmp_path):
    bundle = make_bundle_with_two_splits(tmp_path / "both").root
    start_worker(bundle)
    broker = ("--broker", mosquitto.url, "--engine", "auto")
    answers, summary, err = run(edge, "--split", "pool", *broker, bundle=bundle)
    assert (summary["engine"], summary["threshold"]) == ("onnx", 0.5)
    assert set(answers) == set(range(0, PHOTOS, 2))
    assert "split pool, tuning: none" in err

    answers, summary, err = run(edge, "--split", "lite", *broker, bundle=bundle)
    assert (summary["engine"], summary["threshold"]) == ("tflite", -1.0)
    assert set(answers) == set(range(PHOTOS))
    # Its tail names the least colour, so never the one that a photo has.
    assert all(answers[n] != CLASSES[n % 3] for n in COLOURED)
    assert "split lite" in err


def test_unknown_split_ends_the_run_with_the_names(edge, tmp_path):
    bundle = make_bundle_with_two_splits(tmp_path / "both").root
    code, _lines, err = finish(edge("--json", "--split", "deep", bundle=bundle))
    assert code == 3 and "no split 'deep'; it has: pool, lite" in err


def test_tuning_is_said_at_start_and_flags_win_over_it(edge, tmp_path):
    bundle = make_bundle_with_two_splits(tmp_path / "both").root
    write_tuning(bundle, Tuning("lite", threshold=0.5))
    _answers, summary, err = run(edge, "--engine", "auto", bundle=bundle)
    assert (summary["engine"], summary["threshold"]) == ("tflite", 0.5)
    assert "split lite, tuning: split lite, threshold 0.5" in err
    _answers, summary, err = run(edge, "--engine", "auto", "--threshold", "0.9", bundle=bundle)
    assert summary["threshold"] == 0.9
    _answers, summary, err = run(edge, "--split", "pool", "--engine", "auto", bundle=bundle)
    assert (summary["engine"], summary["threshold"]) == ("onnx", 0.5)
    assert "split pool, tuning: none for this split" in err


def test_split_can_stand_in_the_configuration(edge, tmp_path):
    bundle = make_bundle_with_two_splits(tmp_path / "both").root
    config = tmp_path / "device.toml"
    config.write_text('split = "lite"\nengine = "auto"\n')
    _answers, _summary, err = run(edge, "--config", str(config), "--engine", "auto", bundle=bundle)
    assert "split lite" in err


@pytest.mark.parametrize("device_is_old", [True, False])
def test_schema_1_bundle_works_with_a_bundle_of_the_present_schema(
    edge, mosquitto, start_worker, tmp_path, tiny_bundle, device_is_old
):
    old = copy_schema1(tmp_path / "old")
    device, worker = (old, tiny_bundle.root) if device_is_old else (tiny_bundle.root, old)
    start_worker(worker)
    answers, summary, _err = run(edge, "--broker", mosquitto.url, bundle=device)
    assert set(answers) == set(range(0, PHOTOS, 2))
    assert summary["run"]["lost"] == 0
    assert json.loads((old / "manifest.json").read_text())["schema"] == 1
    assert (old / "manifest.json").read_bytes() == (SCHEMA1 / "manifest.json").read_bytes()
