"""How long each stage of the pipeline takes."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Stages"]

KEEP = 4096


class Stages:
    """The last few thousand durations of each stage, seconds."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Measure what happens inside."""
        began = time.perf_counter()
        yield
        self.add(stage, time.perf_counter() - began)

    def add(self, stage: str, seconds: float) -> None:
        """Record one duration."""
        self._times.setdefault(stage, deque(maxlen=KEEP)).append(seconds)

    def medians_ms(self) -> dict[str, float]:
        """Return the median of each stage, milliseconds."""
        return {
            name: round(statistics.median(list(times)) * 1e3, 4)
            for name, times in list(self._times.items())
        }
