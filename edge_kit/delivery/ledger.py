"""What the next commit records: outcomes, counters, and the results to acknowledge after it.

A result is acknowledged to the broker only after the spool recorded it. Commits are few: an
outcome waits up to a second for the next sample, and shares its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edge_kit.delivery.spool import Outcome, Row, Spool
from edge_kit.errors import SpoolDamagedError, SpoolError
from edge_kit.link.link import Delivery, Link
from edge_kit.telemetry.counters import JSON_NAMES, DeliveryCounters

__all__ = ["Ledger"]

FLUSH_S = 1.0
FLUSH_AT = 32
RETRY_S = 5.0
# The spool counts these by itself, with the rows that they are about.
_OF_ROWS = {"offloaded", *Outcome}


class Ledger:
    """The writing side of a spool.

    Args:
        spool: Where all of it goes.
        link: Results are acknowledged to it.
        counters: Of the run; what was added to them is recorded too.
        clock: Monotonic, seconds.

    Attributes:
        trouble: Why the last commit failed; None once one succeeds.
        damage: The spool turned out to be damaged; None until then.
        outcomes: Samples that ended and are not recorded yet.
    """

    def __init__(
        self, spool: Spool, link: Link, counters: DeliveryCounters, clock: Callable[[], float]
    ) -> None:
        self.trouble = spool.trouble
        self.damage: SpoolDamagedError | None = None
        self.outcomes: dict[bytes, Outcome] = {}
        self._spool = spool
        self._link = link
        self._counters = counters
        self._recorded = vars(counters).copy()
        self._clock = clock
        self._acks: list[Delivery] = []
        self._flush_at: float | None = None

    def end(self, sample: bytes, outcome: Outcome) -> None:
        """Count and record an outcome."""
        self.outcomes[sample] = outcome
        setattr(self._counters, outcome, getattr(self._counters, outcome) + 1)
        self._soon()

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge a result once all that followed from it is recorded."""
        self._acks.append(delivery)
        self._soon()

    def deadline(self) -> float | None:
        """Return when to `flush`; None for no need."""
        return self._flush_at

    def flush(self, more: Mapping[str, int] | None = None) -> None:
        """Record all that waits; when that fails, `trouble` says why, and it is tried again.

        Args:
            more: Counters of others to record with it.
        """
        try:
            self.commit(more=more)
        except SpoolError as error:
            self.failed(error)
            self._flush_at = self._clock() + RETRY_S

    def failed(self, error: SpoolError) -> None:
        """Note an error of the spool."""
        self.trouble = error
        if isinstance(error, SpoolDamagedError):
            self.damage = error

    def commit(self, rows: Sequence[Row] = (), more: Mapping[str, int] | None = None) -> list[Row]:
        """Put all that waits, and new samples, into one transaction, then acknowledge.

        Returns:
            The samples that had to give way.

        Raises:
            SpoolError: Nothing was recorded or acknowledged.
        """
        if self._spool.trouble is not None:
            raise self._spool.trouble
        now = vars(self._counters).copy()
        added = {
            JSON_NAMES[name]: now[name] - before
            for name, before in self._recorded.items()
            if now[name] != before and name not in _OF_ROWS
        }
        for name, n in (more or {}).items():
            if n:
                added[name] = added.get(name, 0) + n
        evicted: list[Row] = []
        if rows or self.outcomes or added:
            evicted = self._spool.settle(rows, self.outcomes, added)
        self._counters.offloaded += len(rows)
        self._counters.evicted += len(evicted)
        self._recorded = now
        self.trouble = None
        self._settled()
        return evicted

    def drop(self) -> None:
        """Acknowledge what waits without recording it: the spool that knew of it is damaged."""
        self.damage = None
        self._settled()

    def _settled(self) -> None:
        self.outcomes, self._flush_at = {}, None
        acks, self._acks = self._acks, []
        for delivery in acks:
            self._link.ack(delivery)

    def _soon(self) -> None:
        """Commit soon, together with what else comes; at once when much has gathered."""
        if len(self._acks) >= FLUSH_AT and self.trouble is None:
            self.flush()
        elif self._flush_at is None:
            self._flush_at = self._clock() + FLUSH_S
