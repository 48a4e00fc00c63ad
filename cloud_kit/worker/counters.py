"""What a worker counts."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

__all__ = ["Counters"]


class Counters:
    """Totals since the start; threads may share it.

    Names: ``received`` = ``admitted`` + the sum of ``refused``. ``inferred`` samples went through
    an engine in ``batches`` that took ``engine_us`` microseconds; ``recent`` were answered from
    memory. ``answered`` results are acknowledged by the broker, ``undelivered`` ones had no
    connection, ``rejected`` ones the broker would not take.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()

    def add(self, name: str, n: int = 1) -> None:
        """Count `n` more of `name`."""
        with self._lock:
            self._totals[name] += n

    def refuse(self, reason: str) -> None:
        """Count a refusal under its reason."""
        with self._lock:
            self._refused[reason] += 1

    def __getitem__(self, name: str) -> int:
        with self._lock:
            return self._totals[name]

    @property
    def refused(self) -> dict[str, int]:
        """Refusals by reason."""
        with self._lock:
            return dict(self._refused)

    def to_json(self) -> dict[str, Any]:
        """Return every total, the usual ones also at zero."""
        usual = ("received", "admitted", "inferred", "recent", "batches", "engine_us", "answered",
                 "undelivered", "rejected", "connections")  # fmt: skip
        with self._lock:
            totals = {name: self._totals[name] for name in usual}
            return totals | dict(self._totals) | {"refused": dict(sorted(self._refused.items()))}
