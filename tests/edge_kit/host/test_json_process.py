"""A child that writes JSON lines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edge_kit.host.child_process import ChildError
from edge_kit.host.json_process import Child
from tests.support.processes import gone


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_lines_of_a_child_arrive_as_events(tmp_path):
    code = 'print(\'{"event": "ready", "n": 1}\'); print(\'noise\'); print(\'{"n": 2}\')'
    with Child("it", script(code), tmp_path / "log") as child:
        assert child.wait_for("ready", 30)["n"] == 1
        assert list(child.events(30)) == [{"n": 2}]


def test_failed_child_is_quoted_with_its_exit_code(tmp_path):
    code = "import sys; print('no such port', file=sys.stderr); sys.exit(6)"
    with Child("the broker", script(code), tmp_path / "log") as child:
        with pytest.raises(ChildError, match="the broker did not start: no such port") as caught:
            child.wait_for("ready", 30)
        assert caught.value.exit_code == 6
    with (
        Child("the broker", script(code), tmp_path / "log") as child,
        pytest.raises(ChildError, match="the broker failed: no such port"),
    ):
        list(child.events(30))


def test_child_that_hangs_is_given_up_and_ended(tmp_path):
    with Child("it", script("import time; time.sleep(600)"), tmp_path / "log") as child:
        with pytest.raises(ChildError, match="it said nothing for 0 s: it gave no reason"):
            child.wait_for("ready", 0.2)
        assert alive(child.pid)
    assert not alive(child.pid)


def test_child_ends_when_its_parent_is_killed(tmp_path):
    inner = "import time; time.sleep(600)"
    outer = (
        "import sys, time; from pathlib import Path; from edge_kit.host.json_process import Child;"
        f"c = Child('it', [sys.executable, '-c', {inner!r}], Path({str(tmp_path / 'log')!r}));"
        "print(c.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen(script(outer), stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert gone(pid)
