"""Play files as a live camera: frames come by the clock, ready or not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from edge_kit.sources.newest import CapturedSource
from edge_kit.sources.source import Frame, Source

__all__ = ["LiveSource", "PacedSource"]


class PacedSource:
    """Yield the frames of another source no faster than `fps`, dropping none.

    Args:
        source: What to pace.
        fps: Frames a second, above 0.
        wait: Waits some seconds or until closed; injected by tests.
    """

    live = False

    def __init__(
        self, source: Source, fps: float, wait: Callable[[float], object] | None = None
    ) -> None:
        self.name = source.name
        self._source = source
        self._period = 1.0 / fps
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait

    @property
    def dropped(self) -> int:
        """Always what the inner source dropped."""
        return self._source.dropped

    @property
    def skipped(self) -> int:
        """Unreadable files so far."""
        return self._source.skipped

    def frames(self) -> Iterator[Frame]:
        """Yield each frame when its turn has come, captured at that moment."""
        due = time.monotonic()
        for frame in self._source.frames():
            ahead = due - time.monotonic()
            if ahead > 0:
                self._wait(ahead)
            if self._closed.is_set():
                return
            yield replace(frame, captured_at=time.time(), ticks=time.monotonic())
            # After a stall the clock starts again: a camera does not catch up in a burst either.
            due = max(due + self._period, time.monotonic())

    def close(self) -> None:
        """End, waking a waiting reader."""
        self._closed.set()
        self._source.close()


class LiveSource(CapturedSource):
    """Play any source as a live camera: the reader always gets the newest frame.

    A thread follows the clock of `source`; what the reader is too slow for is dropped and counted.

    Args:
        source: What to play.
        fps: Frames a second; None when `source` has its own clock.
    """

    def __init__(self, source: Source, fps: float | None) -> None:
        super().__init__(source.name, "live-source")
        self._source: Source = PacedSource(source, fps) if fps else source

    @property
    def dropped(self) -> int:
        """Frames that nobody read in time."""
        return super().dropped + self._source.dropped

    @property
    def skipped(self) -> int:
        """Unreadable files so far."""
        return self._source.skipped

    def close(self) -> None:
        """Stop the clock and end the reader."""
        self._source.close()
        super().close()

    def _run(self) -> None:
        for frame in self._source.frames():
            self._slot.put(frame)
