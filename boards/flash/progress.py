"""Progress of a long copy on standard error: how much, how fast, how long still."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TextIO

__all__ = ["Meter", "progress_line"]

_MIB = 1 << 20
_EVERY_S = 0.2
# Without a terminal, a line at each tenth.
_STEPS = 10


def progress_line(stage: str, done: int, whole: int, seconds: float) -> str:
    """Return one line.

    Args:
        stage: What is going on.
        done: Bytes so far.
        whole: Bytes in all.
        seconds: Since the stage began.
    """
    share = done / whole if whole else 1.0
    text = f"{stage:<10}{share:>5.0%}  {done / _MIB:,.0f} of {whole / _MIB:,.0f} MiB"
    if seconds > 0 and done:
        left = round((whole - done) * seconds / done)
        text += f"  {done / _MIB / seconds:,.1f} MiB/s  {left // 60}:{left % 60:02} left"
    return text


class Meter:
    """Writes progress; call it with stage, bytes done and bytes in all.

    Args:
        stream: Where to; standard error when left out.
        clock: Seconds that only grow.
    """

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._stage = ""
        self._began, self._shown = 0.0, -math.inf
        self._step = -1

    @property
    def stage(self) -> str:
        """Return the stage under way; empty when there is none."""
        return self._stage

    def __call__(self, stage: str, done: int, whole: int) -> None:
        """Show where a stage stands."""
        now = self._clock()
        if stage != self._stage:
            self.close()
            self._stage, self._began, self._shown, self._step = stage, now, -math.inf, -1
        line = progress_line(stage, done, whole, now - self._began)
        if self._stream.isatty():
            if now - self._shown >= _EVERY_S or done >= whole:
                self._shown = now
                self._stream.write(f"\r\033[K{line}")
                self._stream.flush()
        elif (step := _STEPS * done // max(1, whole)) > self._step:
            self._step = step
            self._stream.write(f"{line}\n")

    def close(self) -> None:
        """Leave the line of the stage under way."""
        if self._stage and self._stream.isatty():
            self._stream.write("\n")
            self._stream.flush()
        self._stage = ""
