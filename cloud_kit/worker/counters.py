"""What a worker counts."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

__all__ = ["CounterName", "Counters"]

CounterName: TypeAlias = Literal[
    "received", "admitted", "inferred", "recent", "batches", "engine_us", "answered",
    "undelivered", "rejected", "connections", "engine_failures",
]  # fmt: skip


@dataclass
class Counters:
    """Totals since the start; threads may share it.

    Attributes:
        received: Messages taken: `admitted` and all of `refused`.
        admitted: Messages that became work.
        inferred: Samples that went through an engine.
        recent: Resends that were answered from memory.
        batches: Batches that went through an engine.
        engine_us: Microseconds that these took.
        answered: Results that the broker acknowledged.
        undelivered: Results that could not be sent, or whose connection was lost before the broker
            acknowledged them.
        rejected: Results that the broker refused.
        connections: Times that the broker accepted the worker.
        engine_failures: Samples that the engine could not classify.
        refused: Messages that did not become work, by reason.
    """

    received: int = 0
    admitted: int = 0
    inferred: int = 0
    recent: int = 0
    batches: int = 0
    engine_us: int = 0
    answered: int = 0
    undelivered: int = 0
    rejected: int = 0
    connections: int = 0
    engine_failures: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, name: CounterName, n: int = 1) -> None:
        """Count `n` more of `name`."""
        with self._lock:
            setattr(self, name, getattr(self, name) + n)

    def refuse(self, reason: str) -> None:
        """Count a refusal under its reason."""
        with self._lock:
            self.refused[reason] += 1

    def to_json(self) -> dict[str, Any]:
        """Return every total; engine failures only where there were any."""
        with self._lock:
            totals = {f.name: getattr(self, f.name) for f in fields(self) if f.type == "int"}
            refused = dict(sorted(self.refused.items()))
        if not self.engine_failures:
            del totals["engine_failures"]
        return totals | {"refused": refused}
