"""A place for one frame between the thread that captures and the one that classifies."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from edge_kit.sources.source import Frame

__all__ = ["CapturedSource", "NewestFrame"]

_JOIN_S = 5.0


class NewestFrame:
    """Hold the newest frame only; one that nobody took in time is counted and forgotten."""

    def __init__(self) -> None:
        self.dropped = 0
        self._frame: Frame | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._change = threading.Condition()

    def put(self, frame: Frame) -> None:
        """Offer a frame; it replaces one that waits. Ignored after the end."""
        with self._change:
            if self._ended:
                return
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


class CapturedSource:
    """A live source that captures on a thread of its own, from the first read to the close."""

    live = True

    def __init__(self, name: str, thread: str) -> None:
        self.name = name
        self._slot = NewestFrame()
        # A driver may sit in a read that nothing interrupts: it must not hold up the exit.
        self._thread = threading.Thread(target=self._capture, name=thread, daemon=True)
        self._turn = threading.Lock()
        self._started = False
        self._stopped = False

    @property
    def dropped(self) -> int:
        """Frames that nobody read in time."""
        return self._slot.dropped

    def frames(self) -> Iterator[Frame]:
        """Yield the newest frame each time; may be called once.

        Raises:
            SourceError: The source cannot be opened at the start.
        """
        with self._turn:
            if self._stopped:
                return
            self._thread.start()
            self._started = True
        while (frame := self._slot.take()) is not None:
            yield frame

    def close(self) -> None:
        """End the reader and wait a little for the thread; `_run` has been told to end."""
        with self._turn:
            self._stopped = True
        self._slot.clear()
        self._slot.end()
        if self._started and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        """Put frames into the slot until the source ends or is closed."""
        raise NotImplementedError

    def _capture(self) -> None:
        try:
            self._run()
        except BaseException as error:  # it belongs to the reader's thread
            self._slot.end(error)
        else:
            self._slot.end()
