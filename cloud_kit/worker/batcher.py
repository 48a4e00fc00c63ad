"""Group jobs into batches of one model: as large as allowed, as soon as allowed."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Batcher"]

_T = TypeVar("_T")


class Batcher(Generic[_T]):
    """A queue per group; `take` returns a batch from one of them, in the order of arrival.

    A batch leaves when its group holds `size` jobs or when its oldest job has waited `wait_s`.
    The group whose oldest job is overdue goes before a full one, so no group starves. With
    ``wait_s`` 0 nothing waits: a batch is whatever came while the engine was busy. Any thread puts,
    any thread takes.

    Args:
        size: Most jobs of a batch, at least 1.
        wait_s: Longest that a job waits for a fuller batch, seconds, at least 0.
        group: Jobs that may share a batch give equal values.
        clock: Seconds that only grow.
    """

    def __init__(
        self,
        size: int,
        wait_s: float,
        group: Callable[[_T], Hashable],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if size < 1 or wait_s < 0:
            raise ValueError(
                f"batch size {size} must be at least 1, and wait {wait_s} s at least 0"
            )
        self.size = size
        self.wait_s = wait_s
        self._group = group
        self._clock = clock
        self._queues: dict[Hashable, deque[tuple[float, _T]]] = {}
        self._changed = threading.Condition()
        self._hurried = False
        self._closed = False

    def __len__(self) -> int:
        with self._changed:
            return sum(len(q) for q in self._queues.values())

    def put(self, job: _T) -> None:
        """Add a job.

        Raises:
            ValueError: The batcher is closed.
        """
        with self._changed:
            if self._closed:
                raise ValueError("the batcher is closed")
            queue = self._queues.setdefault(self._group(job), deque())
            queue.append((self._clock(), job))
            # The first job starts the wait, and the last fills the batch.
            if len(queue) == 1 or len(queue) == self.size:
                self._changed.notify()

    def take(self) -> list[_T]:
        """Wait for the next batch; an empty list means closed and drained."""
        with self._changed:
            while True:
                due, wait = self._next()
                if due is not None:
                    batch = self._pop(due)
                    if self._queues:
                        self._changed.notify()  # there may be a batch for another taker too
                    return batch
                if self._closed:
                    return []
                self._changed.wait(wait)

    def hurry(self) -> None:
        """Stop waiting for fuller batches; jobs are still accepted."""
        with self._changed:
            self._hurried = True
            self._changed.notify_all()

    def close(self) -> None:
        """Accept no more jobs; queued ones still leave, without waiting for fuller batches."""
        with self._changed:
            self._closed = self._hurried = True
            self._changed.notify_all()

    def _next(self) -> tuple[Hashable | None, float | None]:
        """Return the group to run now, or how long to wait for one; None waits for a job."""
        if not self._queues:
            return None, None
        oldest = min(self._queues, key=lambda k: self._queues[k][0][0])
        left = self._queues[oldest][0][0] + self.wait_s - self._clock()
        if left <= 0 or self._hurried:
            return oldest, 0.0
        full = [k for k, q in self._queues.items() if len(q) >= self.size]
        if full:
            return min(full, key=lambda k: self._queues[k][0][0]), 0.0
        return None, left

    def _pop(self, key: Hashable) -> list[_T]:
        queue = self._queues[key]
        batch = [queue.popleft()[1] for _ in range(min(self.size, len(queue)))]
        if not queue:
            del self._queues[key]
        return batch
