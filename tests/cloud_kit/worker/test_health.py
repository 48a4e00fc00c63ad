from __future__ import annotations

import json

import pytest

from cloud_kit.worker.health import Heartbeat, check
from cloud_kit.worker.worker import Vitals
from edge_kit.errors import ConfigError

WELL = Vitals(connected=True, engine_s=0.0, draining=False)


def test_fresh_heartbeat_passes(tmp_path):
    path = tmp_path / "beat"
    Heartbeat(path, clock=lambda: 100.0).beat(WELL)
    assert check(path, now=101.0).ok


@pytest.mark.parametrize(
    ("vitals", "now", "said"),
    [
        (WELL, 200.0, "100 s old"),
        (Vitals(connected=False, engine_s=0.0, draining=False), 101.0, "no connection"),
        (Vitals(connected=True, engine_s=90.0, draining=False), 101.0, "in the engine for 90 s"),
    ],
)
def test_old_disconnected_or_stuck_worker_fails(tmp_path, vitals, now, said):
    path = tmp_path / "beat"
    Heartbeat(path, clock=lambda: 100.0).beat(vitals)
    verdict = check(path, now=now)
    assert not verdict.ok
    assert said in verdict.detail


def test_liveness_passes_without_a_connection(tmp_path):
    path = tmp_path / "beat"
    Heartbeat(path, clock=lambda: 100.0).beat(Vitals(False, 0.0, False))
    assert check(path, now=101.0, alive_only=True).ok


@pytest.mark.parametrize("content", ["", "{", "[]", '{"at": "x"}', '{"at": 1}'])
def test_damaged_heartbeat_fails(tmp_path, content):
    path = tmp_path / "beat"
    path.write_text(content)
    assert "cannot be read" in check(path).detail


def test_beats_are_spaced_also_after_the_clock_was_set_back(tmp_path):
    now = [100.0]
    path = tmp_path / "beat"
    heart = Heartbeat(path, period_s=2.0, clock=lambda: now[0])
    at = []
    for now[0] in (100.0, 101.0, 102.5, 50.0):
        heart.beat(WELL)
        at.append(json.loads(path.read_text())["at"])
    assert at == [100.0, 100.0, 102.5, 50.0]


def test_changed_vitals_are_written_at_once(tmp_path):
    path = tmp_path / "beat"
    heart = Heartbeat(path, period_s=2.0, clock=lambda: 100.0)
    for vitals in (Vitals(False, 0.0, False), WELL, Vitals(True, 0.0, True)):
        heart.beat(vitals)
        state = json.loads(path.read_text())
        assert (state["connected"], state["draining"]) == (vitals.connected, vitals.draining)


def test_heartbeat_ahead_of_the_clock_fails(tmp_path):
    path = tmp_path / "beat"
    Heartbeat(path, clock=lambda: 4000.0).beat(WELL)
    assert "ahead of the clock" in check(path, now=400.0).detail


def test_unwritable_health_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        Heartbeat(tmp_path / "missing/beat").beat(WELL)
