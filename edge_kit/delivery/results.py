"""What edge-kit says of one frame. The JSON form is documented in ``docs/results.md``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["SCHEMA", "Result", "stored_result"]

SCHEMA = 1
# Time passes between a capture and its place in the spool; more than this is a clock that was set.
_CLOCK_STEP_S = 10.0


@dataclass(frozen=True)
class Result:
    """One answer to one frame.

    Every frame gets one from the device at once. If that is ``provisional``, a second one with
    the same `sample` follows: the worker's, or the device's again with the status ``standing``.

    Attributes:
        sample: Id of an offloaded frame, hexadecimal; None when the frame never left.
        source: The frame's name, such as a path or ``camera#17``.
        index: The frame's number in its source.
        captured_at: Unix time, seconds.
        label: Class index.
        class_name: Its name.
        confidence: Probability of that class, 0 to 1.
        entropy: Normalized entropy, 0 (sure) to 1.
        tier: Who answers: ``device`` or ``cloud``.
        status: ``final``; ``provisional`` (another follows); or ``standing`` (the device's
            low-confidence answer, which is kept because no better one will come).
        reason: Why it is kept; empty otherwise.
        latency_ms: From capture to this answer.
        round_trip_ms: From the first send of this run to the worker's answer; None on the device.
        bytes_sent: Size of the encoded message; 0 when the frame never left.
    """

    sample: str | None
    source: str
    index: int
    captured_at: float
    label: int
    class_name: str
    confidence: float
    entropy: float
    tier: str = "device"
    status: str = "final"
    reason: str = ""
    latency_ms: float = 0.0
    round_trip_ms: float | None = None
    bytes_sent: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        trip = self.round_trip_ms
        return {
            "schema": SCHEMA,
            "sample": self.sample,
            "source": self.source,
            "index": self.index,
            "captured_at": round(self.captured_at, 6),
            "label": self.label,
            "class": self.class_name,
            "confidence": round(self.confidence, 4),
            "entropy": round(self.entropy, 4),
            "tier": self.tier,
            "status": self.status,
            "reason": self.reason,
            "latency_ms": round(self.latency_ms, 3),
            "round_trip_ms": None if trip is None else round(trip, 3),
            "bytes_sent": self.bytes_sent,
        }

    def encode(self) -> str:
        """Return the JSON form on one line, in ASCII.

        The name of a file need not be Unicode; escaped, it passes through any stream and the spool.
        """
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def decode(cls, text: str) -> Result:
        """Read what `encode` wrote; unknown keys are ignored.

        Raises:
            ValueError: It is not such a line.
        """
        try:
            data = json.loads(text)
            trip = data["round_trip_ms"]
            return cls(
                sample=None if data["sample"] is None else str(data["sample"]),
                source=str(data["source"]),
                index=int(data["index"]),
                captured_at=float(data["captured_at"]),
                label=int(data["label"]),
                class_name=str(data["class"]),
                confidence=float(data["confidence"]),
                entropy=float(data["entropy"]),
                tier=str(data["tier"]),
                status=str(data["status"]),
                reason=str(data["reason"]),
                latency_ms=float(data["latency_ms"]),
                round_trip_ms=None if trip is None else float(trip),
                bytes_sent=int(data["bytes_sent"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a stored result: {error!r}") from None


def stored_result(sample: bytes, text: str, nbytes: int, stored_at: float = 0.0) -> Result:
    """Return the device's own answer to a spooled sample.

    A line that another version wrote, or that a card damaged, must not stop the samples behind it:
    its answer is unknown then, until the cloud's comes.

    Args:
        sample: Its id, 8 bytes.
        text: What `Result.encode` wrote.
        nbytes: Size of the encoded feature message.
        stored_at: Unix time at which it was stored, by a clock that was set; 0 when unknown.
    """
    try:
        return _dated(Result.decode(text), stored_at)
    except ValueError:
        return Result(
            sample.hex(), "", -1, stored_at, 0, "unknown", 0.0, 1.0, bytes_sent=nbytes,
            status="provisional",
        )  # fmt: skip


def _dated(result: Result, stored_at: float) -> Result:
    """Correct a capture time that was stamped before the clock was set."""
    captured_at = stored_at - result.latency_ms / 1e3
    if not stored_at or abs(captured_at - result.captured_at) < _CLOCK_STEP_S:
        return result
    return replace(result, captured_at=captured_at)
