"""A place for one frame between the thread that captures and the one that classifies."""

from __future__ import annotations

import threading

from edge_kit.sources.source import Frame

__all__ = ["NewestFrame"]


class NewestFrame:
    """Hold the newest frame only; one that nobody took in time is counted and forgotten."""

    def __init__(self) -> None:
        self.dropped = 0
        self._frame: Frame | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._change = threading.Condition()

    def put(self, frame: Frame) -> None:
        """Offer a frame; it replaces one that still waits."""
        with self._change:
            if self._frame is not None:
                self.dropped += 1
            self._frame = frame
            self._change.notify_all()

    def clear(self) -> None:
        """Forget the waiting frame, since what it shows is over."""
        with self._change:
            if self._frame is not None:
                self.dropped += 1
                self._frame = None

    def end(self, error: BaseException | None = None) -> None:
        """Say that no frame follows; `take` raises `error` after the last one."""
        with self._change:
            self._ended = True
            self._error = self._error or error
            self._change.notify_all()

    def take(self) -> Frame | None:
        """Wait for a frame and take it; None when there will be none."""
        with self._change:
            self._change.wait_for(lambda: self._frame is not None or self._ended)
            frame, self._frame = self._frame, None
            if frame is None and self._error is not None:
                raise self._error
            return frame
