"""Child processes: they end with their parent, and answer it with one line of JSON."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from edge_kit.errors import EdgeKitError

__all__ = [
    "ChildError",
    "answer_parent",
    "ask_child",
    "describe_death",
    "end_child",
    "end_with_parent",
    "last_words",
    "module_command",
]

_PR_SET_PDEATHSIG = 1
_MOST_WORDS = 300

_SIGNALS = {
    signal.SIGILL: "dies with an illegal instruction on this CPU",
    signal.SIGSEGV: "crashes on this machine (segmentation fault)",
    signal.SIGBUS: "crashes on this machine (bus error)",
    signal.SIGABRT: "gives up on this machine (abort)",
    signal.SIGKILL: "was killed, probably because memory ran out",
}


class ChildError(EdgeKitError):
    """A child process that failed, died, or did not answer in time.

    Args:
        what: What happened.
        code: The exit code of the child, kept as ours; 1 when it had none.
    """

    def __init__(self, what: str, code: int = 1) -> None:
        super().__init__(what)
        self.exit_code = code  # type: ignore[misc]


def module_command(module: str, *arguments: str) -> list[str]:
    """Return how to run a module with this very interpreter."""
    return [sys.executable, "-P", "-m", module, *arguments]


def end_with_parent() -> Callable[[], None] | None:
    """Return the ``preexec_fn`` of a child that gets SIGTERM when its parent dies; Linux only.

    The parent is the thread that starts the child (prctl(2)), so start it on one that lives on.
    """
    if sys.platform != "linux":
        return None
    # Loaded here: between fork and exec as little as possible may run.
    libc, parent = ctypes.CDLL(None), os.getpid()

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it died before the call above

    return bind


def end_child(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """End a child by SIGTERM, after `timeout_s` seconds by SIGKILL; return its exit code."""
    process.terminate()
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def ask_child(arguments: Sequence[str], subject: str, timeout_s: float) -> Any:
    """Run a child to its end and return what it gives to `answer_parent`.

    Args:
        arguments: The command line.
        subject: What the child tries, for messages, such as ``onnxruntime``.
        timeout_s: When to give up, seconds.

    Raises:
        ChildError: It cannot start, died, was too slow, or answered with an error.
    """
    try:
        child = subprocess.run(
            list(arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            preexec_fn=end_with_parent(),
        )
    except subprocess.TimeoutExpired:
        raise ChildError(f"{subject} gave no answer within {timeout_s:.0f} s") from None
    except OSError as error:
        raise ChildError(f"no process for {subject} can be started ({error.strerror})") from None
    if child.returncode < 0:
        raise ChildError(f"the process with {subject} {describe_death(-child.returncode)}")
    said = _last_object(child.stdout)
    if "answer" in said:
        return said["answer"]
    if "error" in said:
        raise ChildError(said["error"], said["code"])
    why = last_words(child.stderr)
    raise ChildError(f"the process with {subject} failed with status {child.returncode} ({why})")


def answer_parent(answer: Callable[[], Any]) -> int:
    """Be the child of `ask_child`: write what `answer` returns, or its error; return the exit code.

    Args:
        answer: Does the work and returns what JSON can hold.
    """
    said: dict[str, Any]
    try:
        said, code = {"answer": answer()}, 0
    except EdgeKitError as error:
        said, code = {"error": str(error), "code": error.exit_code}, error.exit_code
    # An engine may have left a line without an end.
    sys.stdout.write(f"\n{json.dumps(said)}\n")
    return code


def _last_object(stdout: bytes) -> dict[str, Any]:
    """Return the last line that holds a JSON object; engines may write lines of their own."""
    for line in reversed(stdout.decode(errors="replace").splitlines()):
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict):
                return said
    return {}


def describe_death(number: int) -> str:
    """Return what a child's fatal signal means, as the end of a sentence."""
    try:
        known = signal.Signals(number)
    except ValueError:
        return f"was ended by signal {number}"
    return _SIGNALS.get(known, f"was ended by {known.name}")


def last_words(output: bytes) -> str:
    """Return the last line that a child wrote, shortened; it mostly says why it failed."""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1][:_MOST_WORDS] if lines else "it gave no reason"
