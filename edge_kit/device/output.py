"""Where results go: JSON lines, plain lines, or a terminal's live line. Any thread may write."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from edge_kit.delivery.results import Result

__all__ = ["JsonLines", "LiveLine", "PlainLines", "Sink", "describe", "printable"]

LIVE_EVERY_S = 0.1


class Sink(Protocol):
    """A place for results.

    Attributes:
        broken: Whoever read them has gone; nothing more is written.
    """

    broken: bool

    def result(self, result: Result) -> None:
        """Take one result."""

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Take the counters at the end of a run."""


class _Lines:
    """Write whole lines, each at once, until the reader goes away or the disk is full.

    Attributes:
        broken: See `Sink`.
        problem: Why nothing more can be written; empty when the reader just left.
    """

    def __init__(self, stream: TextIO) -> None:
        self.broken = False
        self.problem = ""
        self._stream = stream
        self._lock = threading.Lock()

    def _write(self, text: str) -> None:
        with self._lock:
            if self.broken:
                return
            try:
                self._stream.write(text)
                self._stream.flush()
            except (BrokenPipeError, ValueError):  # ValueError: the stream was closed
                self.broken = True
            except OSError as error:
                self.broken = True
                self.problem = error.strerror or str(error)


class JsonLines(_Lines):
    """One JSON object a line, see ``docs/results.md``; the last one holds the summary."""

    def result(self, result: Result) -> None:
        """Write one line."""
        self._write(result.encode() + "\n")

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write the last line."""
        self._write(json.dumps({"schema": 1, "summary": summary}, separators=(",", ":")) + "\n")


class PlainLines(_Lines):
    """One line a result, for people and ``grep``."""

    def result(self, result: Result) -> None:
        """Write one line."""
        self._write(describe(result) + "\n")

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write nothing: the summary goes to standard error, like every other message."""


class LiveLine(_Lines):
    """One line of a terminal that is written over, at most ten times a second."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._next = 0.0
        self._began = clock()
        self._frames = 0
        self._local = 0
        self._waiting = 0

    def result(self, result: Result) -> None:
        """Count it; redraw when it is time."""
        second = result.tier == "cloud" or (result.status == "standing" and result.sample)
        self._frames += not second
        self._local += not second and result.sample is None
        self._waiting += (result.status == "provisional") - bool(second)
        if self._clock() >= self._next:
            self._next = self._clock() + LIVE_EVERY_S
            self._draw(result)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Leave the last line on the screen."""
        self._write("\n")

    def _draw(self, result: Result) -> None:
        rate = self._frames / max(1e-9, self._clock() - self._began)
        share = 100 * self._local / max(1, self._frames)
        text = (
            f"{self._frames} frames, {rate:.1f}/s, {share:.0f} % answered here, "
            f"{max(0, self._waiting)} waiting | {describe(result)}"
        )
        width = shutil.get_terminal_size().columns - 1
        self._write(f"\r{text[:width]:<{width}}")


def describe(result: Result) -> str:
    """Return a result as one line for people."""
    mark = {"final": "", "provisional": " (asking the cloud)"}.get(
        result.status, f" (low confidence; {result.reason})"
    )
    return (
        f"{printable(result.source)}: {printable(result.class_name)} {result.confidence:.2f} "
        f"[{result.tier}, {result.latency_ms:.0f} ms]{mark}"
    )


def printable(text: str) -> str:
    """Escape what would break a line or a terminal: a file may have any name."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
