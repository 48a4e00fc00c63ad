"""Which refusals of a worker end a sample.

A worker that does not know a model speaks for itself alone. Another member of its pool may hold
the bundle, and so may another pool, whose answer is on its way when the refusal arrives. So
a sample of an unknown model is offered again; only when nobody has answered anything for a while
is it given up. All other refusals say something of the message and are final.
"""

from __future__ import annotations

import math

from edge_kit.delivery.window import InFlight
from edge_kit.wire import Refusal

__all__ = ["Refusals"]

TRIES = 3
PATIENCE_S = 60.0


class Refusals:
    """Remembers when a worker last knew the model, and how many samples nobody knew.

    Final is the third refusal of a sample, or, once that was said of three samples, the first;
    neither while a worker answered within the last minute.
    """

    def __init__(self) -> None:
        self._given_up = 0
        self._answered_at = -math.inf

    def is_final(self, record: InFlight | None, refusal: Refusal, now: float) -> bool:
        """Count a refusal of a sample and return whether its own answer is kept from now on.

        Args:
            record: The sample; None when it was not sent in this run.
            refusal: What the worker said.
            now: Monotonic, seconds.
        """
        if refusal is not Refusal.UNKNOWN_MODEL:
            return True
        if now - self._answered_at < PATIENCE_S:
            return False
        if record is not None:
            record.refusals += 1
        if self._given_up < TRIES and (record is None or record.refusals < TRIES):
            return False
        self._given_up += 1
        return True

    def answered(self, now: float) -> None:
        """Note that a worker knew the model, be it for a sample that is done already."""
        self._answered_at = now
        self._given_up = 0
