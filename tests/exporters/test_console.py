"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import io
import subprocess
import sys

from exporters.console import Console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_bars_do_not_mix_with_lines():
    terminal = Terminal()
    with Console(terminal) as console:
        console.say("photos")
        for done in range(1, 11):
            console.step("photos", done, 10)
        console.step("pixels", 3, 8)
        console.say("gates")
    text = terminal.getvalue()
    assert "10/10" in text
    assert "3/8" in text
    assert text.endswith("gates\n")
    assert "gates" not in text[: text.index("3/8")]


def test_restarted_stage_gets_new_bar():
    terminal = Terminal()
    with Console(terminal) as console:
        for _ in range(2):
            for done in range(1, 4):
                console.step("pixels", done, 3)
    assert terminal.getvalue().count("0/3") == 2


def test_pipe_gets_lines_without_bars(capsys):
    with Console() as console:
        console.say("features")
        console.step("features", 1, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "features\n"


def test_recalibrate_imports_neither_torch_nor_onnx():
    code = (
        "import sys, exporters.cli, exporters.recalibrate\n"
        "print([m for m in ('torch', 'onnx', 'jax', 'litert_torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
