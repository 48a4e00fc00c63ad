"""Get each low-confidence sample one result: a state machine between the spool and the link.

It has no thread and no clock of its own: `Outbox.submit`, `Outbox.handle` and `Outbox.tick` are
called with what happened, and everything else follows from that.

1. A sample is in the spool before it is reported as offloaded, and before it is sent.
2. It stays there until a result came, or a refusal, or it is evicted or too old; in the last
   three cases the device's own answer is kept. Each outcome is counted once, with the deletion.
3. A result is acknowledged to the broker only after the spool recorded it. It is reported at once,
   a moment before that: a crash in between may report the same result again, never lose it.
4. While the spool cannot be opened or written, the device's answers are kept and nothing is sent.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from edge_kit.delivery.ledger import Ledger
from edge_kit.delivery.refusals import Refusals
from edge_kit.delivery.results import Result, stored_result
from edge_kit.delivery.spool import Outcome, Row, Spool
from edge_kit.delivery.window import Pace, Window
from edge_kit.errors import DecodeError, LinkError, SpoolError
from edge_kit.link.link import (
    Connected,
    Delivery,
    Disconnected,
    Event,
    Link,
    Published,
    Refused,
)
from edge_kit.link.reasons import publish_error
from edge_kit.telemetry.counters import Backlog, DeliveryCounters
from edge_kit.wire import FeatureHeader, FeatureMessage, Refusal, ResultMessage, Topics

__all__ = ["Outbox", "Sample"]

SWEEP_S = 5.0
REOPEN_S = 5.0


@dataclass(frozen=True, eq=False)
class Sample:
    """A low-confidence frame on its way into the spool.

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
        counters: What happened in this run.
        unspooled: Why a sample of this run could not be stored, so that its own answer is kept.
        refusal: Why the broker refused the last message that it acknowledged; None when it took it.
        accepted: The broker took a message of this run.
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
        self.counters = DeliveryCounters()
        self.unspooled: SpoolError | None = None
        self.refusal: LinkError | None = None
        self.accepted = False
        self._spool = spool
        self._link = link
        self._topics = topics
        self._classes = classes
        self._model = model
        self._emit = emit
        self._clock = clock
        self._ledger = Ledger(spool, link, self.counters, clock)
        self._refusals = Refusals()
        self._window = Window(pace or Pace(), rng)
        self._window.queue(spool.pending())
        self._taken_over = len(spool)
        self._sweep_at = clock()
        self._reopen_at = clock() + REOPEN_S

    @property
    def trouble(self) -> SpoolError | None:
        """The last error of the spool that has not mended itself; else None."""
        return self._ledger.trouble

    @property
    def pending(self) -> int:
        """Samples without an outcome."""
        return len(self._spool) - len(self._ledger.outcomes)

    def backlog(self) -> Backlog:
        """Return what is left, and what is lost."""
        run, pending = self.counters, self.pending
        done = run.answered + run.refused + run.evicted + run.expired
        return Backlog(pending, self._taken_over + run.offloaded - done - pending)

    def submit(self, samples: Sequence[Sample]) -> None:
        """Store samples, report them as offloaded, send what may be sent.

        A sample that cannot be stored is not sent: its answer is kept, and `trouble` says why.
        """
        if not samples:
            return
        try:
            rows, results = self._encode(samples)
            evicted = self._ledger.commit(rows)
        except SpoolError as error:
            self._ledger.failed(error)
            self.unspooled = error
            self.counters.unspooled += len(samples)
            for sample in samples:
                self._keep_own(self._aged(sample), str(error.what))
            return
        for result in results:
            self._emit(result)
        for row in evicted:
            self._window.completed(row.sample, self._clock(), result=False)
            self._keep_own(self._stored(row), "the spool was full")
        self._window.queue(row.sample for row in rows)
        self._pump()

    def handle(self, event: Event) -> None:
        """Take in what happened to the link; deliveries on other topics are not for here."""
        try:
            match event:
                case Connected():
                    self.connected = True
                    self._window.reconnected()
                case Disconnected():
                    self._disconnected()
                case Published():
                    self._published(event)
                case Refused():
                    self.counters.subscribe_refused += 1
                case Delivery() if event.topic == self._topics.results:
                    self._result(event)
        except SpoolError as error:
            # What needed the spool did not happen: the sample is pending, its result unacknowledged
            # and due to come again.
            self._ledger.failed(error)
        self._pump()

    def tick(self) -> None:
        """Do what time demands: reopen the spool, record, give up what is too old, send again."""
        now = self._clock()
        if self._ledger.damage is not None:
            self._abandon()
        if self._spool.trouble is not None and now >= self._reopen_at:
            self._reopen(now)
        if (due := self._ledger.deadline()) is not None and now >= due:
            self._ledger.flush()
        if now >= self._sweep_at:
            self._sweep_at = now if self._sweep() else now + SWEEP_S
        if self.connected:
            self._window.expire(now)
            self._pump()

    def deadline(self) -> float:
        """Return the clock's time at which `tick` should be called next."""
        times = [self._sweep_at, self._ledger.deadline()]
        if self._spool.trouble is not None:
            times.append(self._reopen_at)
        if self.connected:
            times.append(self._window.deadline())
        return min(time for time in times if time is not None)

    def flush(self, more: Mapping[str, int] | None = None) -> None:
        """Record all outcomes so far, and `more` counters, and acknowledge their results."""
        self._ledger.flush(more)

    def _reopen(self, now: float) -> None:
        if self._spool.open():
            self._taken_over += len(self._spool)
            self._window.queue(self._spool.pending())
            self._ledger.trouble = None
        else:
            self._ledger.trouble = self._spool.trouble
            self._reopen_at = now + REOPEN_S

    def _abandon(self) -> None:
        """Keep the device's answers to what a damaged spool holds, and have it put aside."""
        assert self._ledger.damage is not None
        for sample in self._spool.pending():
            if sample not in self._ledger.outcomes:
                # What cannot be read any more is counted as lost.
                with contextlib.suppress(SpoolError):
                    self._keep_own(self._provisional(sample), "the spool was damaged")
                    self._taken_over -= 1
        self._window.clear()
        self._spool.discard(self._ledger.damage)
        self._ledger.drop()
        self._reopen_at = self._clock()

    def _sweep(self) -> bool:
        """Give up what is too old; return True when there may be more of it."""
        overdue = [s for s in self._spool.overdue() if s not in self._ledger.outcomes]
        try:
            for sample in overdue:
                self._give_up(sample, Outcome.EXPIRED, "no answer came in time")
        except SpoolError as error:
            self._ledger.failed(error)
        if overdue:
            self._ledger.flush()
        return bool(overdue) and self.trouble is None

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

    def _result(self, delivery: Delivery) -> None:
        try:
            self._settle(ResultMessage.decode(delivery.payload))
        except DecodeError:
            self.counters.malformed += 1
        self._ledger.acknowledge(delivery)

    def _settle(self, message: ResultMessage) -> None:
        sample, now = message.sample, self._clock()
        if message.refusal is Refusal.NONE and message.model == self._model:
            self._refusals.answered(now)
        if sample in self._ledger.outcomes or sample not in self._spool:
            if self._spool.is_ours(sample):
                self.counters.duplicates += 1
            else:
                self.counters.unknown_sample += 1
        elif message.refusal is Refusal.NONE:
            self._answer(message)
        elif self._refusals.is_final(self._window.record(sample), message.refusal, now):
            word = message.refusal.name.lower().replace("_", " ")
            why = f"the worker refused it: {word}"
            self._give_up(sample, Outcome.REFUSED, why, result=True)
        else:
            self._window.deferred(sample, now)

    def _answer(self, message: ResultMessage) -> None:
        own = self._provisional(message.sample)
        trip = self._end(message.sample, Outcome.ANSWERED, result=True)
        known = message.model == self._model and message.label < len(self._classes)
        self._emit(
            replace(
                own,
                label=message.label,
                class_name=self._classes[message.label] if known else f"class {message.label}",
                confidence=message.confidence,
                entropy=message.entropy,
                tier="cloud",
                status="final",
                round_trip_ms=None if trip is None else trip * 1e3,
            )
        )

    def _give_up(self, sample: bytes, how: Outcome, why: str, *, result: bool = False) -> None:
        if sample in self._ledger.outcomes:
            return
        own = self._provisional(sample)
        self._end(sample, how, result=result)
        self._keep_own(own, why)

    def _end(self, sample: bytes, how: Outcome, *, result: bool) -> float | None:
        self._ledger.end(sample, how)
        return self._window.completed(sample, self._clock(), result=result)

    def _keep_own(self, result: Result, why: str) -> None:
        self.counters.standing += 1
        self._emit(replace(result, status="standing", reason=why))

    def _provisional(self, sample: bytes) -> Result:
        row = self._spool.get(sample)
        if row is None:
            raise SpoolError(f"the spool {self._spool.path} lost a sample", "check the disk")
        return self._stored(row)

    def _stored(self, row: Row) -> Result:
        stored = stored_result(row.sample, row.provisional, len(row.payload), row.stored_at)
        return replace(stored, latency_ms=stored.latency_ms + row.age_s * 1e3)

    def _aged(self, sample: Sample) -> Result:
        # No wall clock: it may be set between a capture and its answer.
        return replace(sample.result, latency_ms=(self._clock() - sample.ticks) * 1e3)

    def _pump(self) -> None:
        """Send while connected and the window has room."""
        now = self._clock()
        while self.connected and (sample := self._window.next(now)) is not None:
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
                    expiry_s=math.ceil(self._window.pace.cap_s) + 1,
                )
            except (LinkError, SpoolError) as error:
                self._window.put_back(sample)
                if isinstance(error, SpoolError):
                    self._ledger.failed(error)
                return
            first = self._window.sent(sample, token, now).tries == 1
            self.counters.sent += first
            self.counters.resent += not first
            self.counters.bytes += len(row.payload)

    def _published(self, event: Published) -> None:
        if event.refused is not None:
            self.counters.publish_refused += 1
        record = self._window.acknowledged(event.token)
        if record is None:
            return
        if event.refused is None:
            self.accepted, self.refusal = True, None
        else:
            self.refusal = publish_error(self._topics.features, event.refused)
            why = f"the broker refused it: {event.refused}"
            self._give_up(record.sample, Outcome.REFUSED, why)

    def _disconnected(self) -> None:
        self.connected = False
        culprit = self._window.lost_connection(self._clock())
        if culprit is not None:
            why = "the broker ends the connection over it"
            self._give_up(culprit.sample, Outcome.REFUSED, why)
