from __future__ import annotations

import json
import signal
import sys

import pytest

from edge_kit.errors import SourceError
from edge_kit.host.child_process import (
    ChildError,
    answer_parent,
    ask_child,
    describe_death,
    last_words,
    module_command,
)


def ask(code: str, timeout_s: float = 60.0):
    return ask_child([sys.executable, "-c", code], "onnxruntime", timeout_s)


ANSWER = "from edge_kit.host.child_process import answer_parent; import sys; "


def test_answer_comes_back_whatever_else_the_child_writes():
    code = ANSWER + "print('INFO: 1', end=''); answer_parent(lambda: {'a': [1]}); print('[2]')"
    assert ask(code) == {"a": [1]}


def test_error_of_the_child_keeps_its_sentence_and_exit_code():
    code = ANSWER + (
        "from edge_kit.errors import SourceError\n"
        "def fail(): raise SourceError('not one photo can be read')\n"
        "sys.exit(answer_parent(fail))"
    )
    with pytest.raises(ChildError, match=r"^not one photo can be read$") as caught:
        ask(code)
    assert caught.value.exit_code == SourceError.exit_code


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("SIGILL", "the process with onnxruntime dies with an illegal instruction on this CPU"),
        ("SIGSEGV", "segmentation fault"),
        ("SIGABRT", "abort"),
        ("SIGKILL", "memory"),
        ("SIGTERM", "SIGTERM"),
    ],
)
def test_death_by_a_signal_is_explained(number, words):
    with pytest.raises(ChildError, match=words):
        ask(f"import os, signal; os.kill(os.getpid(), signal.{number})")


def test_signal_without_a_name_is_a_number():
    assert describe_death(250) == "was ended by signal 250"
    assert "illegal" in describe_death(signal.SIGILL)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "import sys; sys.exit('ImportError: libm')",
            r"failed with status 1 \(ImportError: libm\)",
        ),
        ("print('[1, 2]')", r"failed with status 0 \(it gave no reason\)"),
        ("print('{}')", "failed with status 0"),
    ],
)
def test_child_without_an_answer_is_an_error_with_its_last_words(code, words):
    with pytest.raises(ChildError, match=words):
        ask(code)


def test_slow_child_is_ended():
    with pytest.raises(ChildError, match="onnxruntime gave no answer within 0 s"):
        ask("import threading; threading.Event().wait()", 0.3)


def test_command_that_cannot_start_is_an_error():
    with pytest.raises(ChildError, match="no process for a can be started"):
        ask_child(["/no/such/python"], "a", 1.0)


def test_child_writes_one_line_and_returns_its_exit_code(capsys):
    assert answer_parent(lambda: 3) == 0
    assert json.loads(capsys.readouterr().out) == {"answer": 3}


def test_module_command_runs_a_module_of_this_installation():
    assert module_command("edge_kit.cli", "run") == [
        sys.executable,
        "-P",
        "-m",
        "edge_kit.cli",
        "run",
    ]


def test_last_words_are_one_shortened_line():
    assert last_words(b"a\n" + b"b" * 400 + b"\n\n") == "b" * 300
    assert last_words(b"\xff\n") == "\N{REPLACEMENT CHARACTER}"
