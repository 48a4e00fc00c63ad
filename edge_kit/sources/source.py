"""What a source of frames is, and its in-memory twin for tests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Frame", "MemorySource", "Source"]


@dataclass(frozen=True, eq=False)
class Frame:
    """One image.

    Attributes:
        pixels: uint8 (H, W, 3), RGB.
        captured_at: Unix time, seconds. A file's frame is captured when it is read.
        index: Counts the frames of a source from 0; gaps are frames that a live source dropped.
        name: Where it comes from: a path relative to its folder, or ``camera#17``.
        ticks: Monotonic time of the capture, seconds: ages survive a clock that is set in between.
    """

    pixels: NDArray[np.uint8]
    captured_at: float
    index: int
    name: str
    ticks: float = field(default_factory=time.monotonic)


class Source(Protocol):
    """Something that yields frames. One thread reads it; any thread may close it.

    Attributes:
        name: For messages.
        live: True when frames arrive by the clock and late readers miss some.
        dropped: Frames that a live source had and nobody read in time; 0 for files.
        skipped: Files that could not be read.
    """

    name: str
    live: bool

    @property
    def dropped(self) -> int:
        """Frames missed so far."""

    @property
    def skipped(self) -> int:
        """Unreadable files so far."""

    def frames(self) -> Iterator[Frame]:
        """Yield frames until the source ends or is closed.

        Raises:
            SourceError: The source cannot be read at all.
        """

    def close(self) -> None:
        """Release the device; a `frames` in progress ends soon. May be called twice."""


class MemorySource:
    """A source that yields given images; for unit tests."""

    name = "memory"

    def __init__(self, images: Iterable[NDArray[np.uint8]], *, live: bool = False) -> None:
        self.live = live
        self.dropped = 0
        self.skipped = 0
        self.closed = False
        self._images = list(images)

    def frames(self) -> Iterator[Frame]:
        """Yield the images, captured now."""
        for index, pixels in enumerate(self._images):
            if self.closed:
                return
            yield Frame(pixels, time.time(), index, f"memory#{index}")

    def close(self) -> None:
        """End."""
        self.closed = True
