"""Courier and outbox against a real mosquitto that dislikes large messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_kit.delivery.courier import Courier
from edge_kit.delivery.outbox import Outbox, Sample
from edge_kit.delivery.results import Result
from edge_kit.delivery.spool import Spool
from edge_kit.link import Connected, Delivery, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.link.open import open_device_link
from edge_kit.telemetry.counters import Backlog
from edge_kit.telemetry.presence import Presence
from edge_kit.tensors import TensorSpec
from edge_kit.wire import FeatureHeader, FeatureMessage, ResultMessage, Topics
from tests.support.mosquitto import Mosquitto

pytestmark = pytest.mark.broker

TOPICS = Topics("cam")
MODEL = b"\x01" * 8
WAIT_S = 60.0


def sample(values: int) -> Sample:
    spec = TensorSpec("features", (1, 1, values), "NCHW", "int8", 1.0, 0)
    features = np.random.default_rng(values).integers(-128, 128, (1, 1, values)).astype(np.int8)
    header = FeatureHeader(MODEL, 0, spec, bytes(8), 5, 0, 0.9)
    return Sample(header, features, Result(None, str(values), 0, time.time(), 0, "a", 0.4, 0.9))


def deliver(broker: Mosquitto, path: Path, *samples: Sample) -> tuple[list[Result], Courier]:
    """Send samples to a worker that answers all, and wait for their outcomes."""
    out: list[Result] = []
    presence = Presence(TOPICS, {})
    link = open_device_link(broker.address, TOPICS, presence.subscription, presence.will)
    spool = Spool(path)
    box = Outbox(spool, link, TOPICS, classes=("a", "b"), model=MODEL, emit=out.append)
    courier = Courier(box, spool, link, presence, state=dict, report=lambda text: None)
    worker = MqttLink(broker.address, "worker", [Subscription(TOPICS.features)])
    worker.start()
    assert isinstance(worker.events.get(timeout=WAIT_S), Connected)
    courier.start()
    for one in samples:
        courier.submit(one)
    deadline = time.monotonic() + WAIT_S
    while not courier.wait_drained(0.05):
        assert time.monotonic() < deadline
        while not worker.events.empty():
            event = worker.events.get()
            if isinstance(event, Delivery):
                number = FeatureMessage.decode(event.payload).header.sample
                answer = ResultMessage(MODEL, number, label=1, confidence=1.0, entropy=0.0)
                worker.publish(TOPICS.results, answer.encode())
                worker.ack(event)
    courier.stop()
    worker.stop()
    return out, courier


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        # Announced on connecting, so that the message is never sent.
        ("max_packet_size 3000", "Packet too large"),
        # Unannounced: mosquitto answers with a reason that MQTT does not allow there, and paho
        # ends the connection over it. The device finds the culprit by sending one at a time.
        ("message_size_limit 3000", "ends the connection over it"),
    ],
)
def test_message_over_the_brokers_limit_keeps_its_own_answer_and_others_arrive(
    make_mosquitto: Callable[..., Mosquitto], tmp_path, setting, reason, monkeypatch
):
    monkeypatch.setattr("edge_kit.link.mqtt.BACKOFF_FIRST_S", 0.05)
    broker = make_mosquitto(extra=setting)
    out, courier = deliver(
        broker, tmp_path / "s.db", sample(100), sample(9000), sample(101), sample(102)
    )
    by_source: dict[str, list[str]] = {}
    for result in out:
        by_source.setdefault(result.source, []).append(f"{result.tier} {result.status}")
    finished = ["device provisional", "cloud final"]
    assert by_source == {
        "100": finished, "101": finished, "102": finished,
        "9000": ["device provisional", "device standing"],
    }  # fmt: skip
    (standing,) = [r for r in out if r.status == "standing"]
    assert reason in standing.reason
    run = courier.counters
    assert (run.answered, run.refused) == (3, 1) and courier.backlog() == Backlog()
