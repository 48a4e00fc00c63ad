"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from edge_kit.terminal.progress import ProgressBars


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bars_do_not_mix_with_lines():
    terminal = Terminal()
    with ProgressBars(stream=terminal) as bars:
        bars.say("photos")
        for done in range(1, 11):
            bars.step("photos", done, 10)
        bars.step("pixels", 3, 8)
        bars.say("gates")
    text = terminal.getvalue()
    assert "10/10" in text
    assert "3/8" in text
    assert text.endswith("gates\n")
    assert "gates" not in text[: text.index("3/8")]


def test_restarted_stage_gets_new_bar():
    terminal = Terminal()
    with ProgressBars(stream=terminal) as bars:
        for _ in range(2):
            for done in range(1, 4):
                bars.step("pixels", done, 3)
    assert terminal.getvalue().count("0/3") == 2


def test_pipe_gets_lines_without_bars(capsys):
    with ProgressBars() as bars:
        bars.say("features")
        bars.step("features", 1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "features\n"


def test_stages_without_a_terminal_are_named_once(capsys):
    with ProgressBars(named=True) as bars:
        for stage in ("one", "two"):
            for done in range(4):
                bars.step(stage, done, 3)
    assert capsys.readouterr().err == "one\ntwo\n"


def test_stage_without_steps_shows_no_bar():
    terminal = Terminal()
    with ProgressBars(stream=terminal) as bars:
        bars.step("nothing", 0, 0)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "full"])
def test_standard_error_that_cannot_be_written_ends_nothing(closed, monkeypatch, capsys):
    with Path("/dev/full").open("wb", buffering=0) as full:
        stream = None if closed else io.TextIOWrapper(full, write_through=True)
        monkeypatch.setattr(sys, "stderr", stream)
        with ProgressBars(named=True) as bars:
            bars.step("one", 1, 3)
            bars.say("two")
    assert capsys.readouterr().out == ""
