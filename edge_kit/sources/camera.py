"""A camera of any kind as a live source: newest frame only, retried when it disappears."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import SourceError
from edge_kit.sources.newest import CapturedSource
from edge_kit.sources.source import Frame

__all__ = ["Camera", "CameraSource"]

_LOG = logging.getLogger(__name__)
_RETRY_FIRST_S = 1.0
_RETRY_MOST_S = 10.0


class Camera(Protocol):
    """A driver. One thread opens, reads and closes it.

    Attributes:
        name: For messages, such as ``/dev/video0``; without credentials.
    """

    name: str

    def open(self) -> None:
        """Start the camera.

        Raises:
            SourceError: It is not there, is busy or is refused, and what to do.
        """

    def grab(self) -> bool:
        """Wait for the next frame and hold it; False when the camera is gone."""

    def retrieve(self) -> NDArray[np.uint8] | None:
        """Decode the held frame into uint8 (H, W, 3) RGB; None when it is damaged."""

    def close(self) -> None:
        """Stop the camera. May be called twice."""


class CameraSource(CapturedSource):
    """Read a camera on a thread of its own.

    A camera that fails at the first opening is an error, since someone just asked for it; one
    that disappears later is retried until it returns or the source is closed.

    Args:
        camera: The driver.
        fps: Hand out at most so many frames a second; the rest are taken off the camera without
            decoding them, so that a slow pipeline idles. None: all.
        wait: Waits some seconds or until closed; injected by tests.
        clock: Monotonic seconds.
    """

    skipped = 0

    def __init__(
        self,
        camera: Camera,
        fps: float | None = None,
        *,
        wait: Callable[[float], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(camera.name, "camera")
        self.lost = 0
        self._camera = camera
        self._period = 1.0 / fps if fps else 0.0
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._clock = clock
        self._index = 0

    def close(self) -> None:
        """Release the camera and end the reader."""
        self._closed.set()
        super().close()

    def _run(self) -> None:
        try:
            self._camera.open()
            while not self._closed.is_set():
                self._read_until_gone()
                if not self._closed.is_set():
                    self._reopen()
        finally:
            self._camera.close()

    def _read_until_gone(self) -> None:
        due = self._clock()
        while not self._closed.is_set() and self._camera.grab():
            now = self._clock()
            if now < due:
                continue
            due = max(due + self._period, now)
            pixels = self._camera.retrieve()
            if pixels is None:
                continue
            self._slot.put(Frame(pixels, time.time(), self._index, f"{self.name}#{self._index}"))
            self._index += 1

    def _reopen(self) -> None:
        """Try until the camera is back or the source is closed."""
        self.lost += 1
        self._slot.clear()
        self._camera.close()
        pause = _RETRY_FIRST_S
        _LOG.warning("%s stopped giving frames; trying it again until it returns", self.name)
        while not self._closed.is_set():
            self._wait(pause)
            if self._closed.is_set():
                return
            try:
                self._camera.open()
            except SourceError as error:
                pause = min(pause * 2, _RETRY_MOST_S)
                _LOG.warning("%s; next try in %.0f s", error, pause)
            else:
                _LOG.warning("%s is back", self.name)
                return
