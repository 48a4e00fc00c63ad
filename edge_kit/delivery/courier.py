"""The thread that owns spool, outbox and link, so that capture never waits for disk or network."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from edge_kit.delivery.outbox import Outbox, Sample
from edge_kit.delivery.spool import Spool
from edge_kit.errors import EdgeKitError, LinkError, SpoolError
from edge_kit.host.clock import ClockWait
from edge_kit.link.link import Connected, Disconnected, Event, Link, Published
from edge_kit.telemetry.counters import Backlog, DeliveryCounters
from edge_kit.telemetry.presence import Presence
from edge_kit.telemetry.problems import Problems

__all__ = ["Courier"]

_log = logging.getLogger(__name__)

INBOX = 64
IDLE_S = 10.0
RECONNECT_MAX_S = 300.0
CLOCK_EVERY_S = 1.0
# An event that changes nothing; it only ends a wait.
_WAKE = Published(token=0, generation=0)


class Courier:
    """Carry samples to the cloud in the background, until stopped.

    Args:
        outbox: Decides; used by this thread alone once started.
        spool: Closed with this.
        link: Started and stopped with this.
        presence: Tells the world.
        state: What ``…/state`` tells besides what is known here.
        report: Told, once each, a sentence about what people should know: connection lost, back.
        clock: The link is not started before this wait is over; None for no wait.
        patient: A broker that refuses us ends nothing: samples are spooled, and it is asked again.

    Attributes:
        fatal: Why the cloud is out of reach for good; None while it may come back.
        error: What ended the thread unexpectedly; None while all is well.
        ever_connected: The broker accepted us at least once.
        spool_seconds: Time spent encoding and storing samples.
    """

    def __init__(
        self,
        outbox: Outbox,
        spool: Spool,
        link: Link,
        presence: Presence,
        *,
        state: Callable[[], Mapping[str, Any]],
        report: Callable[[str], None],
        clock: ClockWait | None = None,
        patient: bool = False,
    ) -> None:
        self.fatal: LinkError | None = None
        self.error: EdgeKitError | None = None
        self.ever_connected = False
        self.spool_seconds = 0.0
        self.patient = patient
        self._outbox = outbox
        self._spool = spool
        self._link = link
        self._presence = presence
        self._state = state
        self._report = report
        self._problems = Problems(report)
        self._clock = clock
        self._inbox: queue.Queue[Sample] = queue.Queue(INBOX)
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self._connected = False
        self._conflict = False
        self._again_at = 0.0
        self._refused: set[str] = set()
        self._counts: Mapping[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="edge-kit-courier", daemon=True)

    @property
    def trouble(self) -> EdgeKitError | None:
        """What the end of a run tells besides: the spool failed, or the broker took no sample."""
        spool = self._outbox.trouble or self._outbox.unspooled
        return spool or (None if self._outbox.accepted else self._outbox.refusal)

    @property
    def pending(self) -> int:
        """Samples without an outcome."""
        return self._outbox.pending + self._inbox.qsize()

    def start(self) -> None:
        """Connect and begin with what earlier runs left."""
        self._describe_spool()
        if self._clock is None:
            self._link.start()
        self._thread.start()

    def submit(self, sample: Sample) -> None:
        """Hand a sample over. Waits only while the disk is slower than the frames.

        Raises:
            EdgeKitError: The thread has ended by an error.
        """
        while True:
            if self.error is not None:
                raise self.error
            try:
                self._inbox.put(sample, timeout=1.0)
                break
            except queue.Full:
                continue
        self._link.events.put(_WAKE)

    @property
    def counters(self) -> DeliveryCounters:
        """Of this run."""
        return self._outbox.counters

    def backlog(self) -> Backlog:
        """Return what is left, and what is lost."""
        return self._outbox.backlog()

    def total(self) -> dict[str, int]:
        """Return the counters since the spool was made."""
        return self._spool.counters()

    def wait_drained(self, timeout_s: float) -> bool:
        """Wait until every sample has its outcome, or the cloud is out of reach."""
        self._drained.clear()
        self._link.events.put(_WAKE)
        # The event may tell of a moment before the last `submit`.
        return self._drained.wait(timeout_s) and (not self.pending or self.fatal is not None)

    def stop(self, counts: Mapping[str, int] | None = None) -> None:
        """Store what was handed over, record what came, say goodbye. Nothing is lost.

        Args:
            counts: What to add to the spool's counters besides.
        """
        self._counts = counts or {}
        if not self._thread.is_alive():
            self._spool.close()
            return
        self._stopping.set()
        self._link.events.put(_WAKE)
        self._thread.join(30)

    def _run(self) -> None:
        try:
            self._look_at_clock()
            while not self._stopping.is_set():
                self._step(self._next_event())
            self._store()
        except EdgeKitError as error:
            self.error = error
        except Exception as error:
            _log.exception("the courier failed")
            self.error = SpoolError(f"internal error while delivering: {error!r}")
        finally:
            self._close()

    def _close(self) -> None:
        self._outbox.flush(self._counts)
        self._presence.leave(self._link)
        self._link.stop()
        self._spool.close()
        self._drained.set()

    def _next_event(self) -> Event | None:
        times = [self._outbox.deadline(), self._presence.deadline() or float("inf")]
        idle = IDLE_S if self._clock is None else CLOCK_EVERY_S
        wait = min(idle, min(times) - time.monotonic())
        try:
            return self._link.events.get(timeout=max(0.0, wait))
        except queue.Empty:
            return None

    def _look_at_clock(self) -> None:
        """Connect once the clock was set, if that is waited for: certificates are judged by it."""
        if self._clock is None:
            return
        if sentence := self._clock.look():
            self._report(sentence)
        if self._clock.over:
            self._clock = None
            self._spool.clock_was_set()
            self._link.start()

    def _step(self, event: Event | None) -> None:
        self._look_at_clock()
        if event is not None:
            self._outbox.handle(event)
            conflict = self._presence.handle(event, self._link)
            self._watch(event, conflict)
        self._store()
        if self.fatal and not self._conflict and time.monotonic() >= self._again_at:
            # Passwords and certificates get renewed while a board stays where it is.
            self._again_at = time.monotonic() + RECONNECT_MAX_S
            self._link.start()
        self._outbox.tick()
        self._describe_spool()
        self._describe_refusals()
        self._presence.tick(self._link, self._body)
        if not self.pending or self.fatal is not None:
            self._drained.set()

    def _refusals(self) -> list[LinkError]:
        return [r for r in (self._outbox.refusal, self._presence.refusal) if r is not None]

    def _body(self) -> dict[str, Any]:
        state = dict(self._state())
        refused = [str(refusal) for refusal in self._refusals()]
        problems = [*self._problems.sentences(), *refused, *state.pop("problems", [])]
        return {**state, "problems": problems}

    def _describe_spool(self) -> None:
        """Say once that the spool fails, and once that it works again, and what became of it."""
        if self._spool.notice:
            self._report(self._spool.notice)
            self._spool.notice = ""
        self._problems.update(
            "spool",
            str(self._outbox.trouble or ""),
            "the spool works again",
            prospect="; until that is repaired nothing can be offloaded",
        )

    def _describe_refusals(self) -> None:
        """Say once in a run that the broker refuses messages, for each reason."""
        for refusal in self._refusals():
            if str(refusal) not in self._refused:
                self._refused.add(str(refusal))
                self._report(str(refusal))

    def _store(self) -> None:
        """Move all that was handed over into the spool, as one transaction."""
        samples = []
        while True:
            try:
                samples.append(self._inbox.get_nowait())
            except queue.Empty:
                break
        if samples:
            before = time.perf_counter()
            self._outbox.submit(samples)
            self.spool_seconds += time.perf_counter() - before

    def _watch(self, event: Event, conflict: LinkError | None) -> None:
        if isinstance(event, Connected):
            self._problems.update("link", "", "connected to the broker again")
            self.ever_connected = True
            self._connected = True
            self.fatal = None
        elif isinstance(event, Disconnected) and event.error is not None:
            prospect = self._prospect(fatal=event.fatal)
            self._problems.update("link", str(event.error), "", prospect=prospect)
            if event.fatal:
                self.fatal = event.error
                self._again_at = time.monotonic() + RECONNECT_MAX_S
                # Ended for good while connected: another client has our session now; to come back
                # would throw it out in turn.
                self._conflict = self._connected
            self._connected = False
        if conflict is not None:
            self.fatal = conflict
            self._conflict = True
            self._report(str(conflict))
            self._link.stop()

    def _prospect(self, *, fatal: bool) -> str:
        if not fatal:
            return "; samples wait in the spool, trying again"
        if self.patient and not self._connected:
            return "; samples wait in the spool, trying again every five minutes"
        return ""
