"""Get each doubtful sample one result: a state machine between the spool and the link.

It has no thread and no clock of its own: `Outbox.submit`, `Outbox.handle` and `Outbox.tick` are
called with what happened, and everything else follows from that.

1. A sample is in the spool before it is reported as offloaded, and before it is sent.
2. It stays there until a result came, or a refusal, or it is evicted or too old; in the last
   three cases the device's own answer stands. Each outcome is counted once, with the deletion.
3. A result is acknowledged to the broker only after the spool recorded it. It is reported at once,
   a moment before that: a crash in between may report the same result again, never lose it.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from edge_kit.delivery.flights import Flight, Flights, Pace
from edge_kit.delivery.refusals import Refusals
from edge_kit.delivery.results import Result, stored_result
from edge_kit.delivery.spool import OUTCOMES, Row, Spool
from edge_kit.errors import DecodeError, LinkError, SpoolError
from edge_kit.link.link import Connected, Delivery, Disconnected, Event, Link, Published
from edge_kit.wire import FeatureHeader, FeatureMessage, Refusal, ResultMessage, Topics

__all__ = ["Outbox", "Sample"]

FLUSH_S = 1.0
FLUSH_AT = 32
RETRY_SPOOL_S = 5.0
SWEEP_S = 5.0
STRIKES = 3
STRIKE_S = 5.0


@dataclass(frozen=True, eq=False)
class Sample:
    """A doubtful frame on its way into the spool.

    Attributes:
        header: What the message will say; its sample id is filled in later.
        features: The quantized tensor.
        result: The device's own answer.
        ticks: Monotonic time of the capture, seconds.
    """

    header: FeatureHeader
    features: NDArray[Any]
    result: Result
    ticks: float = field(default_factory=time.monotonic)


class Outbox:
    """Deliver samples. One thread uses it.

    Args:
        spool: Where samples survive.
        link: How they leave; subscribed to ``topics.results``.
        topics: Of this device.
        classes: Class names of the bundle.
        model: First 8 bytes of the bundle's model hash.
        emit: Called with each `Result`: provisional, of the cloud, or standing.
        pace: How eagerly to send.
        clock: Monotonic, seconds; injected by tests.
        rng: For jitter.

    Attributes:
        connected: The link is up.
        trouble: The last error of the spool that has not mended itself; else None.
        unspooled: Why a sample of this run could not be stored, so that its answer stands.
        counts: Events of this run: ``sent``, ``resent``, ``bytes``, and what the spool counts.
    """

    def __init__(
        self,
        spool: Spool,
        link: Link,
        topics: Topics,
        *,
        classes: Sequence[str],
        model: bytes,
        emit: Callable[[Result], None],
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
    ) -> None:
        self.connected = False
        self.trouble: SpoolError | None = None
        self.unspooled: SpoolError | None = None
        self.counts: dict[str, int] = {}
        self._spool = spool
        self._link = link
        self._topics = topics
        self._classes = classes
        self._model = model
        self._emit = emit
        self._clock = clock
        self._flights = Flights(pace or Pace(), rng)
        self._flights.queue(spool.pending())
        self._inherited = len(spool)
        # Recorded with the next commit: outcomes, counters, and results to acknowledge after it.
        self._ends: dict[bytes, str] = {}
        self._tally: dict[str, int] = {}
        self._acks: list[Delivery] = []
        self._flush_at: float | None = None
        self._sweep_at = clock()
        self._suspects: set[bytes] = set()
        self._strikes: dict[bytes, int] = {}
        self._refusals = Refusals()

    @property
    def pending(self) -> int:
        """Samples without an outcome."""
        return len(self._spool) - len(self._ends)

    def summary(self) -> dict[str, dict[str, int]]:
        """Return all counters, of this ``run`` and in ``total`` since the spool was made.

        ``lost`` counts samples that have neither an outcome nor a place in the spool.
        """
        names = ("offloaded", *OUTCOMES, "duplicates", "sent", "resent", "bytes", "standing",
                 "unspooled", "malformed", "strangers")  # fmt: skip
        run = {name: self.counts.get(name, 0) for name in names}
        run["pending"] = self.pending
        done = sum(run[how] for how in OUTCOMES)
        run["lost"] = self._inherited + run["offloaded"] - done - run["pending"]
        return {"run": run, "total": self._spool.counters()}

    def submit(self, samples: Sequence[Sample]) -> None:
        """Store samples, report them as offloaded, send what may be sent.

        A sample that cannot be stored is not sent: its answer stands, and `trouble` says why.
        """
        if not samples:
            return
        try:
            rows, results = self._encode(samples)
            evicted = self._commit(rows)
        except SpoolError as error:
            self.trouble = self.unspooled = error
            self.count("unspooled", len(samples))
            for sample in samples:
                self._stand(self._aged(sample), str(error.what))
            return
        for result in results:
            self._emit(result)
        for row in evicted:
            self._forget(row.sample, result=False)
            self._stand(self._stored(row), "the spool was full")
        self._flights.queue(row.sample for row in rows)
        self._pump()

    def handle(self, event: Event) -> None:
        """Take in what happened to the link; deliveries on other topics are not for here."""
        try:
            match event:
                case Connected():
                    self.connected = True
                    self._flights.reconnected()
                case Disconnected():
                    self._lost()
                case Published():
                    self._published(event)
                case Delivery() if event.topic == self._topics.results:
                    self._result(event)
            self._pump()
        except SpoolError as error:
            # What needed the spool did not happen: the sample is pending, its result unacknowledged
            # and due to come again.
            self.trouble = error

    def tick(self) -> None:
        """Do what time demands: record, give up what is too old, send again."""
        now = self._clock()
        if self._flush_at is not None and now >= self._flush_at:
            self.flush()
        if now >= self._sweep_at:
            self._sweep_at = now if self._sweep() else now + SWEEP_S
        if self.connected:
            self._flights.expire(now)
            self.handle(Published(0, 0))  # nobody's token: just an occasion to send

    def _sweep(self) -> bool:
        """Give up what is too old; return True when there may be more of it."""
        overdue = [s for s in self._spool.overdue() if s not in self._ends]
        try:
            for sample in overdue:
                self._give_up(sample, "expired", "no answer came in time")
            if overdue:
                self.flush()
        except SpoolError as error:
            self.trouble = error
        return bool(overdue) and self.trouble is None

    def deadline(self) -> float:
        """Return the clock's time at which `tick` should be called next."""
        times = [self._sweep_at]
        if self._flush_at is not None:
            times.append(self._flush_at)
        if self.connected and (due := self._flights.deadline()) is not None:
            times.append(due)
        return min(times)

    def flush(self) -> None:
        """Record all outcomes so far and acknowledge their results."""
        try:
            self._commit([])
        except SpoolError as error:
            self.trouble = error
            self._flush_at = self._clock() + RETRY_SPOOL_S

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter of this run and, with the next commit, of the spool."""
        self._count(name, n)
        self._tally[name] = self._tally.get(name, 0) + n

    def _count(self, name: str, n: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + n

    def _encode(self, samples: Sequence[Sample]) -> tuple[list[Row], list[Result]]:
        rows, results = [], []
        for sample in samples:
            number = self._spool.next_id()
            payload = FeatureMessage(
                replace(sample.header, sample=number), sample.features
            ).encode()
            result = replace(self._aged(sample), sample=number.hex(), status="provisional")
            result = replace(result, bytes_sent=len(payload))
            rows.append(Row(number, payload, result.encode()))
            results.append(result)
        return rows, results

    def _commit(self, rows: Sequence[Row]) -> list[Row]:
        """Put all that waits into one transaction, then acknowledge."""
        evicted: list[Row] = []
        if rows or self._ends or self._tally:
            evicted = self._spool.settle(rows, self._ends, self._tally)
        self.trouble = None
        for name, n in (("offloaded", len(rows)), ("evicted", len(evicted))):
            if n:
                self._count(name, n)
        self._ends, self._tally, self._flush_at = {}, {}, None
        acks, self._acks = self._acks, []
        for delivery in acks:
            self._link.ack(delivery)
        return evicted

    def _later(self) -> None:
        """Commit soon, together with what else comes; at once when much has gathered."""
        if len(self._acks) >= FLUSH_AT and self.trouble is None:
            self.flush()
        elif self._flush_at is None:
            self._flush_at = self._clock() + FLUSH_S

    def _result(self, delivery: Delivery) -> None:
        try:
            self._settle(ResultMessage.decode(delivery.payload))
        except DecodeError:
            self.count("malformed")
        self._acks.append(delivery)
        self._later()

    def _settle(self, message: ResultMessage) -> None:
        sample, now = message.sample, self._clock()
        if message.refusal is Refusal.NONE and message.model == self._model:
            self._refusals.answered(now)
        if sample in self._ends or sample not in self._spool:
            self.count("duplicates" if self._spool.is_ours(sample) else "strangers")
        elif message.refusal is not Refusal.NONE:
            if not self._refusals.is_final(sample, message.refusal, now):
                self._flights.passed_on(sample, now)
                return
            word = message.refusal.name.lower().replace("_", " ")
            self._give_up(sample, "refused", f"the worker refused it: {word}", result=True)
        else:
            self._answer(message)

    def _answer(self, message: ResultMessage) -> None:
        mine = self._provisional(message.sample)
        trip = self._end(message.sample, "answered", result=True)
        known = message.model == self._model and message.label < len(self._classes)
        self._emit(
            replace(
                mine,
                label=message.label,
                class_name=self._classes[message.label] if known else f"class {message.label}",
                confidence=message.confidence,
                entropy=message.entropy,
                tier="cloud",
                status="final",
                round_trip_ms=None if trip is None else trip * 1e3,
            )
        )

    def _give_up(self, sample: bytes, how: str, why: str, *, result: bool = False) -> None:
        if sample in self._ends:
            return
        mine = self._provisional(sample)
        self._end(sample, how, result=result)
        self._stand(mine, why)

    def _end(self, sample: bytes, how: str, *, result: bool) -> float | None:
        self._ends[sample] = how
        self._count(how)
        self._later()
        return self._forget(sample, result=result)

    def _forget(self, sample: bytes, *, result: bool) -> float | None:
        self._suspects.discard(sample)
        self._strikes.pop(sample, None)
        self._refusals.forget(sample)
        return self._flights.landed(sample, self._clock(), result=result)

    def _stand(self, result: Result, why: str) -> None:
        self.count("standing")
        self._emit(replace(result, status="standing", reason=why))

    def _provisional(self, sample: bytes) -> Result:
        row = self._spool.get(sample)
        if row is None:
            raise SpoolError(f"the spool {self._spool.path} lost a sample", "check the disk")
        return self._stored(row)

    def _stored(self, row: Row) -> Result:
        stored = stored_result(
            row.sample, row.provisional, row.payload, self._classes, row.stored_at
        )
        return replace(stored, latency_ms=stored.latency_ms + row.age_s * 1e3)

    def _aged(self, sample: Sample) -> Result:
        # No wall clock: it may be set between a capture and its answer.
        return replace(sample.result, latency_ms=(self._clock() - sample.ticks) * 1e3)

    def _pump(self) -> None:
        """Send while connected and the window has room."""
        now = self._clock()
        while self.connected and not (self._suspects and self._unacknowledged()):
            sample = self._flights.next(now)
            if sample is None:
                return
            try:
                row = self._spool.get(sample)
                if row is None:
                    continue
                token = self._link.publish(
                    self._topics.features,
                    row.payload,
                    correlation=sample,
                    response_topic=self._topics.results,
                    # A copy that outlived its resend would only cost a worker's time.
                    expiry_s=math.ceil(self._flights.pace.cap_s) + 1,
                )
            except LinkError:
                self._flights.put_back(sample)
                return
            except SpoolError:
                self._flights.put_back(sample)
                raise
            flight = self._flights.sent(sample, token, now)
            self.count("sent" if flight.tries == 1 else "resent")
            self.count("bytes", len(row.payload))

    def _unacknowledged(self) -> bool:
        return any(self._flights.unacknowledged())

    def _published(self, event: Published) -> None:
        flight = self._flights.acknowledged(event.token)
        if flight is None:
            return
        self._suspects.discard(flight.sample)
        self._strikes.pop(flight.sample, None)
        if event.refused is not None:
            self._give_up(flight.sample, "refused", f"the broker refused it: {event.refused}")

    def _lost(self) -> None:
        """A connection ended: find out whether one message is what ends them.

        Some brokers drop a client over a message that they do not like. What was under way then
        is sent one by one on the next connection; who ends three of them, alone and at once, is
        given up.
        """
        self.connected = False
        lost: list[Flight] = self._flights.lost_connection()
        now = self._clock()
        self._suspects.update(f.sample for f in lost)
        if len(lost) == 1 and now - lost[0].sent < STRIKE_S:
            sample = lost[0].sample
            self._strikes[sample] = self._strikes.get(sample, 0) + 1
            if self._strikes[sample] >= STRIKES:
                self._give_up(sample, "refused", "the broker ends the connection over it")
        else:
            self._strikes.clear()
