"""Run the system's programs. Standard library only."""

from __future__ import annotations

import subprocess
from typing import Protocol

__all__ = ["Run", "call"]

TIMEOUT_S = 300


class Run(Protocol):
    """Something that runs a program: `call`, or a test's stand-in."""

    def __call__(self, *words: object, stdin: str | None = None) -> str:
        """Return the program's standard output."""


def call(*words: object, stdin: str | None = None) -> str:
    """Run a program and return what it wrote.

    Raises:
        OSError: It failed or does not exist; the text holds the end of what it said.
        subprocess.SubprocessError: It did not end in time.
    """
    done = subprocess.run(
        [str(word) for word in words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise OSError(f"{words[0]}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout
