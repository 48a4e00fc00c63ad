"""The guards on real machines: every device of every recorded situation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from boards.flash.guards import may_flash, objections
from boards.flash.reading import disks_of
from tests.support.boards.recorded import MACHINES, described, recorded, states

IMAGE = 48 << 20
# In use, or unfit; --force-device does not help. All other objections it overrules.
FINAL = {"system", "mounted", "swap", "held", "pool", "busy", "open", "silent", "group",
         "partition", "kind", "virtual", "read-only", "empty", "small"}  # fmt: skip
STATES = tuple(states())


@pytest.mark.parametrize("state", STATES, ids=str)
def test_every_device_is_judged_as_expected(state):
    disks = state.disks
    wrong = []
    for target in state.targets():
        expected = set(state.expects(target).split(" or ")) - {""}
        found = objections(target, disks, IMAGE + (1 << 20))
        codes = {o.code for o in found}
        good = not found if not expected else (
            expected & codes and not may_flash(found, forced=False)
            and not (expected & FINAL and may_flash(found, forced=True)))  # fmt: skip
        if not good:
            wrong.append(f"{target.path}: expected {expected or 'none'}, found {codes}")
    assert wrong == []


@pytest.mark.parametrize("machine", MACHINES)
def test_every_described_situation_is_recorded(machine):
    wanted = {(s["name"], v) for s in described(machine)["states"]
              for v in s.get("versions", ["own"])}  # fmt: skip
    assert {(r["state"], r["version"]) for r in recorded(machine)["states"]} == wanted
    assert set(described(machine)["disks"]) <= set(recorded(machine)["names"])


def test_recordings_hold_many_dangerous_targets_and_good_ones():
    rows = [(s.machine, s.name, t.name, s.expects(t)) for s in STATES for t in s.targets()]
    dangerous = {row[:3] for row in rows if row[3]}
    good = {row[:3] for row in rows if not row[3]}
    assert len(dangerous) >= 40
    assert len(good) >= 10
    assert len({row[3] for row in rows if row[3]}) >= 14


def test_recordings_hold_several_versions_of_lsblk():
    assert len({s.version for s in STATES}) >= 3


def test_each_source_besides_lsblk_is_needed():
    # So each of the other sources is needed, and the recordings can show a guard to be wrong.
    for without in ({"busy": ()}, {"loops": {}}, {"writers": {}}):
        passed = [
            target.path
            for state in STATES
            for disks in [disks_of(replace(state.reading, **without))]
            for target in disks
            if state.expects(target) and not objections(target, disks, IMAGE)
        ]
        assert passed, without


@pytest.mark.parametrize("machine", MACHINES)
def test_no_answer_is_recorded_twice(machine):
    answers = [json.dumps(row["reading"], sort_keys=True) for row in recorded(machine)["states"]]
    assert len(set(answers)) == len(answers)
