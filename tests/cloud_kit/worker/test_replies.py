from __future__ import annotations

import threading

import pytest

from cloud_kit.worker.replies import MAX_WAITING
from cloud_kit.worker.worker import Worker, WorkerSettings
from edge_kit.link import Connected, Delivery, Published, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import ResultMessage, Topics, shared_filter
from tests.support.messages import (
    TIMEOUT,
    bench,
    fake_tail,
    message,
    models,
    sample_id,
    scores,
)


def test_features_are_acknowledged_after_their_result():
    with bench() as b:
        confirm = b.link.events.put
        held = []
        b.link.events.put = lambda e: held.append(e) if isinstance(e, Published) else confirm(e)
        b.send(message(0), 0)
        b.result()
        assert len(b.link.unacked) == 1
        b.link.events.put = confirm
        for event in held:
            confirm(event)
        b.send(message(1), 1)
        b.result()
    assert len(b.link.acked) == 2


def test_results_wait_in_order_for_a_slow_broker_and_all_arrive():
    """Some brokers send more than they were allowed to; nothing may be lost for that."""
    count = 3 * MAX_WAITING
    with bench(batch=64) as b:
        forward = b.link.events.put
        held = []
        b.link.events.put = lambda e: held.append(e) if isinstance(e, Published) else forward(e)
        for index in range(count):
            b.send(message(index), index)
        first = [b.result().sample for _ in range(MAX_WAITING)]
        while b.worker.counters.inferred < count:
            assert not threading.Event().wait(0.01)
        assert len(held) == MAX_WAITING
        b.link.events.put = forward
        for event in held:
            forward(event)
        rest = [b.result().sample for _ in range(count - MAX_WAITING)]
    assert first + rest == [sample_id(i) for i in range(count)]
    assert b.worker.counters.answered == count == len(b.link.acked)
    assert b.worker.counters.undelivered == 0


@pytest.mark.broker
def test_flood_through_a_real_broker_loses_nothing(mosquitto):
    count = 3000
    link = MqttLink(
        mosquitto.address, "worker", [Subscription(shared_filter("p"))], receive_maximum=32
    )
    worker = Worker(link, models(), WorkerSettings(tick_s=0.05))
    thread = threading.Thread(target=worker.run)
    topics = Topics("cam-1")
    device = MqttLink(mosquitto.address, "cam-1", [Subscription(topics.results)])
    thread.start()
    device.start()
    answered: set[bytes] = set()
    try:
        assert isinstance(device.events.get(timeout=TIMEOUT), Connected)
        while not worker.vitals.connected:
            assert not threading.Event().wait(0.01)
        sent = unacknowledged = 0
        while len(answered) < count:
            while sent < count and unacknowledged < 15:
                device.publish(
                    topics.features,
                    message(sent),
                    correlation=sample_id(sent),
                    response_topic=topics.results,
                )
                sent, unacknowledged = sent + 1, unacknowledged + 1
            match device.events.get(timeout=TIMEOUT):
                case Published():
                    unacknowledged -= 1
                case Delivery() as event:
                    device.ack(event)
                    answered.add(ResultMessage.decode(event.payload).sample)
    finally:
        worker.stop()
        thread.join(TIMEOUT)
        device.stop()
    assert worker.counters.answered == count
    assert worker.counters.undelivered == 0


def test_resend_after_a_lost_connection_is_answered_from_memory():
    running, go = threading.Event(), threading.Event()

    def call(tensors):
        running.set()
        assert go.wait(TIMEOUT)
        return scores(tensors)

    tail = fake_tail(call)
    with bench(models(tail)) as b:
        b.send(message(0), 0)
        assert running.wait(TIMEOUT)
        b.link.drop()
        go.set()
        while b.worker.counters.undelivered < 1:
            assert not threading.Event().wait(0.01)
        b.link.start()
        b.send(message(0), 0)
        assert b.result().label == 0
    assert tail.engine.calls == 1
    assert b.link.acked and all(d.generation == 2 for d in b.link.acked)


def test_results_in_flight_at_a_disconnect_count_as_undelivered():
    with bench() as b:
        forward = b.link.events.put
        b.link.events.put = lambda e: None if isinstance(e, Published) else forward(e)
        for index in range(3):
            b.send(message(index), index)
            b.result()
        b.link.drop()
        while b.worker.counters.undelivered < 3:
            assert not threading.Event().wait(0.01)
    assert b.worker.counters.undelivered == 3
    assert b.worker.counters.answered == 0
