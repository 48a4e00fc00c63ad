"""The worker: receive, decode, batch, infer, publish, acknowledge.

The loop's thread consumes the link's events, validates messages and acknowledges them. Each lane
is a thread that takes batches, runs them and publishes. Nothing runs in a network callback.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from cloud_kit.worker.batcher import Batcher
from cloud_kit.worker.classify import classify
from cloud_kit.worker.counters import Counters
from cloud_kit.worker.models import Models
from cloud_kit.worker.recent import Recent
from cloud_kit.worker.replies import Replies
from cloud_kit.worker.validator import Job, Refused, Validator
from edge_kit.link import Connected, Delivery, Disconnected, Event, Link, Published
from edge_kit.wire import Refusal, ResultMessage

__all__ = ["Vitals", "Worker", "WorkerSettings"]

# After a drain that ran out of time the engine may be in the middle of a batch.
ENGINE_JOIN_S = 2.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """How a worker works.

    Attributes:
        batch: Most samples of a batch.
        wait_s: Longest that a sample waits for a fuller batch, seconds; 0 never waits.
        recent: Answers remembered for resends.
        drain_s: Longest that a stopping worker takes to finish what it has, seconds.
        lanes: Batches that may run at the same time.
        tick_s: Longest that `Worker.run` waits for an event, seconds.
    """

    batch: int = 16
    wait_s: float = 0.002
    recent: int = 4096
    drain_s: float = 10.0
    lanes: int = 1
    tick_s: float = 0.25


@dataclass(frozen=True)
class Vitals:
    """How a worker is, for health checks.

    Attributes:
        connected: The broker's connection stands.
        engine_s: Seconds that the oldest running batch has been in the engine; 0 when idle.
        draining: It was told to stop.
    """

    connected: bool
    engine_s: float
    draining: bool


class Worker:
    """One member of a pool.

    Args:
        link: Subscribed to the pool's shared filter. The worker starts and stops it.
        models: What it can finish.
        settings: See `WorkerSettings`.
    """

    def __init__(
        self,
        link: Link,
        models: Models,
        settings: WorkerSettings | None = None,
    ) -> None:
        self.settings = settings or WorkerSettings()
        self.counters = Counters()
        self._link = link
        self._validator = Validator(models)
        self._batcher: Batcher[Job] = Batcher(
            self.settings.batch, self.settings.wait_s, lambda job: (job.tail.model, job.tail.cut)
        )
        self._recent: Recent[bytes] = Recent(self.settings.recent)
        self._replies = Replies(link, self.counters)
        self._connected = False
        self._tick_at = 0.0
        self._batch_since: list[float | None] = [None] * self.settings.lanes
        self._failure: BaseException | None = None
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask `run` to drain and return; from any thread, but not from a signal handler."""
        self._stop.set()

    @property
    def vitals(self) -> Vitals:
        """How it is now."""
        since = [begin for begin in self._batch_since if begin is not None]
        busy = time.monotonic() - min(since) if since else 0.0
        return Vitals(self._connected, busy, self._stop.is_set())

    def run(self, on_tick: Callable[[Vitals], None] = lambda vitals: None) -> bool:
        """Work until `stop`; return whether everything taken was finished in time.

        Args:
            on_tick: Called on this thread about every ``tick_s``.

        Raises:
            LinkError: The link gave up, such as for bad credentials.
        """
        self._on_tick = on_tick
        lanes = [
            threading.Thread(target=self._infer, args=(lane,), name=f"lane-{lane}", daemon=True)
            for lane in range(self.settings.lanes)
        ]
        for thread in lanes:
            thread.start()
        self._link.start()
        try:
            while not self._stop.is_set():
                self._step()
            return self._drain()
        finally:
            self._batcher.close()
            for thread in lanes:
                thread.join(ENGINE_JOIN_S)
            self._link.stop()

    def _step(self) -> None:
        try:
            event = self._link.events.get(timeout=self.settings.tick_s)
        except queue.Empty:
            pass
        else:
            self._handle(event)
        if self._failure is not None:
            raise self._failure
        now = time.monotonic()
        if now >= self._tick_at:
            self._tick_at = now + self.settings.tick_s
            self._on_tick(self.vitals)

    def _handle(self, event: Event) -> None:
        match event:
            case Delivery():
                self._receive(event)
            case Published():
                self._replies.confirm(event)
            case Connected():
                self._connected, self._tick_at = True, 0.0
                self.counters.add("connections")
            case Disconnected():
                self._connected, self._tick_at = False, 0.0
                self._replies.void(event.generation)
                if event.fatal and event.error is not None:
                    raise event.error
                if event.error is not None:
                    _log.warning("%s", event.error)

    def _receive(self, delivery: Delivery) -> None:
        self.counters.add("received")
        self._replies.own(delivery)
        checked = self._validator.validate(delivery)
        if isinstance(checked, Refused):
            self._refuse(checked)
        else:
            self.counters.add("admitted")
            self._batcher.put(checked)

    def _refuse(self, refused: Refused) -> None:
        self.counters.refuse(refused.reason)
        _log.info("refused a message on %s: %s", refused.delivery.topic, refused.sentence)
        if refused.topics is None or refused.sample is None:
            self._replies.drop(refused.delivery)
            return
        answer = ResultMessage(refused.model, refused.sample, refused.refusal)
        self._replies.send(refused.delivery, refused.topics, refused.sample, answer.encode())

    def _infer(self, lane: int) -> None:
        try:
            while jobs := self._batcher.take():
                for job, answer in zip(jobs, self._answers(jobs, lane), strict=True):
                    self._replies.send(job.delivery, job.topics, job.header.sample, answer)
        except BaseException as error:
            # The loop raises it: a worker without its engine must not look alive.
            self._failure = error

    def _answers(self, jobs: Sequence[Job], lane: int) -> list[bytes]:
        """Return one encoded result a job, in order; only samples not yet known are inferred."""
        known: dict[Hashable, bytes] = {}
        fresh: dict[Hashable, Job] = {}
        for job in jobs:
            answer = self._recent.get(job.key)
            if answer is None:
                fresh.setdefault(job.key, job)
            else:
                known[job.key] = answer
        self.counters.add("recent", len(jobs) - len(fresh))
        if fresh:
            known |= self._infer_fresh(fresh, lane)
        return [known[job.key] for job in jobs]

    def _infer_fresh(self, fresh: Mapping[Hashable, Job], lane: int) -> dict[Hashable, bytes]:
        self._batch_since[lane] = time.monotonic()
        results = classify(list(fresh.values()))
        self._batch_since[lane] = None
        self.counters.add("batches")
        self.counters.add("inferred", len(fresh))
        self.counters.add("engine_us", results[0].engine_us)
        answers: dict[Hashable, bytes] = {}
        for key, result in zip(fresh, results, strict=True):
            answers[key] = result.encode()
            if result.refusal is Refusal.NONE:
                self._recent.put(key, answers[key])
            else:
                self.counters.add("engine_failures")
        return answers

    def _drain(self) -> bool:
        """Finish what was taken, hold back what would bring more, then acknowledge it all."""
        self._replies.hold()
        self._batcher.hurry()
        until = time.monotonic() + self.settings.drain_s
        while (self._replies.owned or not self._link.events.empty()) and self._connected:
            if time.monotonic() >= until:
                _log.warning("%d messages were not finished in time", self._replies.owned)
                return False
            self._step()
        self._replies.release()
        return True
