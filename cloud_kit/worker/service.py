"""One worker process: link, models, worker, heartbeat and events put together."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cloud_kit.worker.health import Heartbeat
from cloud_kit.worker.models import Models, open_models
from cloud_kit.worker.settings import ServiceSettings
from cloud_kit.worker.worker import Vitals, Worker
from edge_kit.errors import ConfigError, LinkError
from edge_kit.host.signals import StopRequest
from edge_kit.link import Link, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import shared_filter

__all__ = ["EventPrinter", "serve", "state_topic"]

SWITCH_S = 0.0005
KEEPALIVE_S = 10

_log = logging.getLogger(__name__)

EventPrinter = Callable[[dict[str, Any]], None]
"""Takes one event, ready for JSON; the key ``event`` names its kind."""


def state_topic(worker: str) -> str:
    """Return where a worker publishes its counters (QoS 0, not retained)."""
    return f"edgekit/1/workers/{worker}/state"


def serve(settings: ServiceSettings, emit: EventPrinter, stop: StopRequest) -> bool:
    """Work until asked to stop; return whether everything taken was finished.

    Raises:
        BundleError, EngineError: A bundle cannot be served.
        LinkError: The broker refuses for good.
        ConfigError: The health file cannot be written.
    """
    # An engine that returns wants the interpreter's lock at once; the default lets the network
    # thread keep it for 5 ms, a third of a batch.
    sys.setswitchinterval(SWITCH_S)
    models = open_models(settings.bundles, settings.pool_threads)
    try:
        return _serve(settings, models, stop, emit)
    finally:
        models.close()


def _serve(
    settings: ServiceSettings, models: Models, stop: StopRequest, emit: EventPrinter
) -> bool:
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
    worker = Worker(link, models, settings.work)
    reporter = _Reporter(settings, worker, link, client_id, emit)
    emit(
        {
            "event": "starting",
            "id": client_id,
            "models": sorted({f"{t.name}/{t.model.hex()}" for t in models.tails.values()}),
            **settings.to_json(),
        }
    )
    stop.on_stop(worker.stop)
    try:
        clean = worker.run(reporter.tick)
    finally:
        reporter.close()
    emit({"event": "stopped", "clean": clean, **worker.counters.to_json()})
    return clean


class _Reporter:
    """Tells health checks and people, after each tick, what changed."""

    def __init__(
        self,
        settings: ServiceSettings,
        worker: Worker,
        link: Link,
        client_id: str,
        emit: EventPrinter,
    ) -> None:
        self._worker = worker
        self._heart = Heartbeat(settings.health_file) if settings.health_file else None
        self._period_s = settings.report_s
        self._link = link
        self._topic = state_topic(client_id)
        self._emit = emit
        self._connected = False
        self._next = time.monotonic() + self._period_s
        self._said: dict[str, Any] = {}
        self._complained = False
        if self._heart:
            self._heart.beat(worker.vitals)

    def tick(self, vitals: Vitals) -> None:
        self._beat(vitals)
        if vitals.connected != self._connected:
            self._connected = vitals.connected
            self._emit({"event": "connected" if vitals.connected else "disconnected"})
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._period_s
            self._say(self._worker.counters.to_json())

    def _beat(self, vitals: Vitals) -> None:
        """Beat; a full disk must not end a worker that answers, the health check will tell."""
        if not self._heart:
            return
        try:
            self._heart.beat(vitals)
            self._complained = False
        except ConfigError as error:
            if not self._complained:
                _log.warning("%s", error)
            self._complained = True

    def _say(self, counters: dict[str, Any]) -> None:
        with suppress(LinkError):
            self._link.publish(self._topic, json.dumps(counters).encode(), qos=0)
        if counters != self._said:
            self._said = counters
            self._emit({"event": "counters", **counters})

    def close(self) -> None:
        if self._heart:
            self._heart.remove()
