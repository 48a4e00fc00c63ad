"""One worker process: link, models, worker, heartbeat and reports put together."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from cloud_kit.health import Heartbeat
from cloud_kit.models import open_models
from cloud_kit.settings import Settings
from cloud_kit.worker import Vitals, Worker
from edge_kit.errors import LinkError
from edge_kit.link import Link, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import shared_filter

__all__ = ["Report", "serve", "state_topic"]

KEEPALIVE_S = 10

Report = Callable[[dict[str, Any]], None]
"""Takes one event, ready for JSON; the key ``event`` names its kind."""


def state_topic(worker: str) -> str:
    """Return where a worker publishes its counters (QoS 0, not retained)."""
    return f"edgekit/1/workers/{worker}/state"


def serve(settings: Settings, report: Report) -> bool:
    """Work until SIGTERM or SIGINT; return whether everything taken was finished.

    Call it on the main thread, where signals arrive.

    Raises:
        BundleError, EngineError: A bundle cannot be served.
        LinkError: The broker refuses for good.
        ConfigError: The health file cannot be written.
    """
    models = open_models(settings.bundles, settings.threads)
    client_id = settings.new_client_id()
    link = MqttLink(
        settings.broker,
        client_id,
        [Subscription(shared_filter(settings.pool))],
        clean_start=True,
        session_expiry=0,
        receive_maximum=settings.receive_maximum,
        keepalive=KEEPALIVE_S,
    )
    watch = _Watch(settings, link, client_id, report)
    worker = Worker(link, models, settings.work, on_tick=watch.tick)
    watch.worker = worker
    report(
        {
            "event": "starting",
            "id": client_id,
            "models": sorted({f"{t.name}/{t.model.hex()}" for t in models.tails.values()}),
            **settings.to_json(),
        }
    )
    try:
        with _on_signals(worker.stop):
            clean = worker.run()
    finally:
        watch.close()
        models.close()
    report({"event": "stopped", "clean": clean, **worker.counters.to_json()})
    return clean


class _Watch:
    """Looks after each tick whether something is worth saying."""

    def __init__(self, settings: Settings, link: Link, client_id: str, report: Report) -> None:
        self.worker: Worker | None = None
        self._heart = Heartbeat(settings.health_file) if settings.health_file else None
        self._period_s = settings.report_s
        self._link = link
        self._topic = state_topic(client_id)
        self._report = report
        self._connected = False
        self._next = time.monotonic() + self._period_s
        self._said: dict[str, Any] = {}

    def tick(self, vitals: Vitals) -> None:
        if self._heart:
            self._heart.beat(vitals)
        if vitals.connected != self._connected:
            self._connected = vitals.connected
            self._report({"event": "connected" if vitals.connected else "disconnected"})
        if time.monotonic() >= self._next and self.worker is not None:
            self._next = time.monotonic() + self._period_s
            self._say(self.worker.counters.to_json())

    def _say(self, counters: dict[str, Any]) -> None:
        with suppress(LinkError):
            self._link.publish(self._topic, json.dumps(counters).encode(), qos=0)
        if counters != self._said:
            self._said = counters
            self._report({"event": "counters", **counters})

    def close(self) -> None:
        if self._heart:
            self._heart.remove()


@contextmanager
def _on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT; the second one of a kind acts as by default."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, before[number])
        stop()

    kinds = (signal.SIGTERM, signal.SIGINT)
    before = {int(kind): signal.signal(kind, handle) for kind in kinds}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
