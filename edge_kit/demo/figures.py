"""What a demo measured, photo by photo and as a whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_kit.demo.comparison import HalfAnswers

__all__ = ["Answer", "Figures"]


@dataclass(frozen=True)
class Answer:
    """All that is known of one photo in the end.

    Attributes:
        name: Its path, relative to the photos' folder.
        truth: Index of its true class.
        halves: What each half says of it; the device's part as it was in the run.
        final_label: The answer that stood in the end; None when none came.
        tier: ``device`` or ``cloud``: who gave that answer.
        offloaded: The device was unsure and sent it.
        entropy: The device's normalized entropy.
        device_ms: From frame to the device's answer; None when it gave none.
        roundtrip_ms: From sending to the cloud's answer; None when there was none.
    """

    name: str
    truth: int
    halves: HalfAnswers
    final_label: int | None = None
    tier: str = "device"
    offloaded: bool = False
    entropy: float = 1.0
    device_ms: float | None = None
    roundtrip_ms: float | None = None


@dataclass(frozen=True)
class Figures:
    """The whole demo.

    Attributes:
        answers: One a photo.
        duplicates: Answers that came a second time and were not counted.
        engine: The device's.
        threshold: T of the run.
        broker: Which broker carried the messages.
    """

    answers: Sequence[Answer]
    duplicates: int
    engine: str
    threshold: float
    broker: str
    classes: Sequence[str]

    @property
    def offloaded(self) -> list[Answer]:
        """The photos that left the device as features."""
        return [a for a in self.answers if a.offloaded]

    @property
    def lost(self) -> int:
        """Photos without a final answer: none at all, or sent and never answered."""
        return sum(
            a.final_label is None or (a.offloaded and a.tier != "cloud") for a in self.answers
        )

    def accuracy(self, label: Callable[[Answer], int | None]) -> float:
        """Return the share of photos, 0 to 1, that `label` answers rightly."""
        return float(np.mean([label(a) == a.truth for a in self.answers]))

    def to_json(self) -> dict[str, Any]:
        """Return what ``edge-kit demo --json`` ends with; None where nothing was sent."""
        sent = self.offloaded
        device = [a.device_ms for a in self.answers if a.device_ms is not None]
        roundtrip = [a.roundtrip_ms for a in sent if a.roundtrip_ms is not None]
        return {
            "photos": len(self.answers),
            "device_share": 1 - len(sent) / len(self.answers),
            "accuracy": {
                "device": self.accuracy(lambda a: a.halves.device_label),
                "cloud": self.accuracy(lambda a: a.halves.cloud_label),
                "hybrid": self.accuracy(lambda a: a.final_label),
            },
            "bytes_per_offloaded": _mean([a.halves.message_bytes for a in sent]),
            "jpeg_bytes": _mean([a.halves.jpeg_bytes for a in self.answers]),
            "latency_ms": {
                "device_p50": _percentile(device, 50),
                "device_p95": _percentile(device, 95),
                "roundtrip_p50": _percentile(roundtrip, 50),
                "roundtrip_p95": _percentile(roundtrip, 95),
            },
            "lost": self.lost,
            "duplicates": self.duplicates,
            "engine": self.engine,
            "threshold": self.threshold,
            "broker": self.broker,
        }


def _mean(values: Sequence[int]) -> float | None:
    return round(float(np.mean(values)), 1) if values else None


def _percentile(values: Sequence[float], q: float) -> float | None:
    return round(float(np.percentile(values, q)), 3) if values else None
