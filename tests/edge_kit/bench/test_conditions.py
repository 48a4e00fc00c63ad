"""What the board went through: throttling bits, sensors, other load, and what they mean."""

from __future__ import annotations

import itertools
import threading

import pytest

from edge_kit.bench.conditions.conditions import BoardMonitor, Conditions
from edge_kit.bench.conditions.state import (
    BoardState,
    Throttling,
    busy_seconds,
    read_governor,
    read_state,
)
from edge_kit.records import to_json
from tests.edge_kit.bench.samples import pi_bits


@pytest.mark.parametrize(
    ("text", "now", "since", "sentence"),
    [
        (
            "throttled=0x50005\n",
            ("under-voltage", "throttled"),
            ("under-voltage", "throttled"),
            "under-voltage and throttled, now and since boot",
        ),
        ("0", (), (), "never throttled since boot"),
        ("throttled=0x0", (), (), "never throttled since boot"),
        ("80000", (), ("soft temperature limit",), "soft temperature limit since boot, not now"),
        (
            "e0002",
            ("clock capped",),
            ("clock capped", "throttled", "soft temperature limit"),
            "clock capped now; clock capped and throttled and soft temperature limit since boot",
        ),
    ],
)
def test_throttling_bits_become_words(text, now, since, sentence):
    found = Throttling.parse(text)
    assert (found.now, found.since_boot, found.sentence()) == (now, since, sentence)


@pytest.mark.parametrize("text", ["", "throttled=", "VCHI initialization failed", "-5"])
def test_throttling_without_a_number_is_unknown(text):
    assert Throttling.parse(text) is None


def pi(root, throttled="0"):
    thermal = root / "sys/class/thermal"
    for zone, heat in (("thermal_zone0", 48312), ("thermal_zone1", 51000)):
        (thermal / zone).mkdir(parents=True)
        (thermal / zone / "temp").write_text(f"{heat}\n")
    for device, kind, level in (
        ("cooling_device0", "gpio-fan", 3),
        ("cooling_device1", "cpufreq-cpu0", 0),
    ):
        (thermal / device).mkdir()
        (thermal / device / "type").write_text(f"{kind}\n")
        (thermal / device / "cur_state").write_text(f"{level}\n")
    for core, khz in enumerate((600000, 1800000)):
        folder = root / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_cur_freq").write_text(f"{khz}\n")
        (folder / "scaling_governor").write_text("ondemand\n")
    firmware = root / "sys/devices/platform/soc/soc:firmware"
    firmware.mkdir(parents=True)
    (firmware / "get_throttled").write_text(f"{throttled}\n")
    (root / "proc").mkdir()
    (root / "proc/stat").write_text("cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 2 3\n")
    return root


def test_state_of_a_raspberry_pi_is_read(tmp_path):
    state = read_state(pi(tmp_path, "50005"), vcgencmd=lambda: pytest.fail("the file is there"))
    assert to_json(state) == {
        "temperature_c": 51.0,
        "clock_mhz": 1200.0,
        "throttled": "0x50005",
        "throttled_now": ["under-voltage", "throttled"],
        "throttled_since_boot": ["under-voltage", "throttled"],
        "cooling": False,
        "throttle_count": None,
    }
    assert read_governor(tmp_path) == "ondemand"


def test_vcgencmd_is_asked_where_the_kernel_has_no_file(tmp_path):
    assert read_state(tmp_path, vcgencmd=lambda: "throttled=0x4\n").throttling == Throttling(4)


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ('test "$1" = get_throttled && echo throttled=0x50000', Throttling(0x50000)),
        ("echo 'Can not open device file: /dev/vcio' >&2; exit 255", None),
    ],
)
def test_vcgencmd_on_the_path_is_run(tmp_path, monkeypatch, script, found):
    program = tmp_path / "vcgencmd"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert read_state(tmp_path).throttling == found


def test_machine_without_sensors_has_an_empty_state(tmp_path):
    state = read_state(tmp_path, vcgencmd=lambda: "")
    assert state == BoardState()
    assert state.throttled_now == ()
    assert (read_governor(tmp_path), busy_seconds(tmp_path)) == ("", None)


def test_slowed_core_is_cooling_and_a_running_fan_is_not(tmp_path):
    root = pi(tmp_path)
    level = root / "sys/class/thermal/cooling_device1/cur_state"
    assert read_state(root).cooling is False
    level.write_text("2\n")
    assert read_state(root).cooling is True


def test_busy_seconds_count_stolen_time_but_not_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    assert busy_seconds(pi(tmp_path)) == (100 + 20 + 30 + 6 + 7 + 8) / 100


def conditions(*throttled, other=0.0, **state):
    states = [pi_bits(t, **state) for t in throttled]
    return Conditions.of([states[0], *states, states[-1]], other, 4, 1.0)


def test_throttling_before_the_run_does_not_mark_it():
    assert conditions(0x50000, 0x50000).marks == ()


@pytest.mark.parametrize(
    ("bits", "why"),
    [
        ((0x0, 0x50005, 0x50000), ("throttled", "under-voltage")),
        ((0x10000, 0x50000), ("throttled",)),  # between two looks
        ((0x0, 0x80008, 0x80000), ("soft temperature limit",)),
    ],
)
def test_run_that_throttled_is_marked(bits, why):
    found = conditions(*bits)
    assert found.throttled == why
    assert found.marks == (f"throttled: {', '.join(why)}",)


def test_cooling_and_x86_counters_mark_a_run():
    assert "because of heat" in conditions(0, 0, cooling=True).marks[0]
    before, after = BoardState(throttle_count=5), BoardState(throttle_count=6)
    assert Conditions.of([before, after], None, 4, 1.0).throttled == ("throttled",)
    assert Conditions.of([before, before], None, 4, 1.0).throttled == ()


def test_other_load_above_a_tenth_of_the_machine_disturbs():
    assert conditions(0, other=0.39).marks == ()
    assert conditions(0, other=0.41).marks == ("disturbed: other programs kept 0.41 cores busy",)


def test_monitor_looks_before_during_and_after():
    numbers, seen = itertools.count(), threading.Event()

    def look():
        number = next(numbers)
        if number >= 3:
            seen.set()
        return BoardState(temperature_c=40.0 + number)

    busy = iter((100.0, 1e6))
    with BoardMonitor(look, lambda: next(busy), interval_s=0.001) as monitor:
        assert seen.wait(30)
    found = monitor.conditions
    assert found.before.temperature_c == 40.0
    assert found.during.looks == len(found.during.temperatures_c) >= 3
    assert found.after.temperature_c > max(found.during.temperatures_c)
    assert found.during.temperature_max_c == found.after.temperature_c
    assert found.disturbed


def test_own_work_is_not_other_load():
    busy = iter((100.0, 100.0))
    with BoardMonitor(BoardState, lambda: next(busy)) as monitor:
        sum(range(200_000))
    assert monitor.conditions.other_load == 0.0
