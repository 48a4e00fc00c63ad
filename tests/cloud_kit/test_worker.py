from __future__ import annotations

import threading

import numpy as np
import pytest

from cloud_kit.worker.replies import MAX_WAITING
from cloud_kit.worker.validator import Job, Refused, Validator
from cloud_kit.worker.worker import Worker, WorkerSettings
from edge_kit.errors import EngineError, LinkError
from edge_kit.link import Connected, Delivery, Disconnected, Published, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.tensors import TensorSpec
from edge_kit.wire import Refusal, ResultMessage, Topics, shared_filter
from tests.support.messages import (
    MODEL,
    TIMEOUT,
    bench,
    colour,
    delivery,
    fake_tail,
    message,
    models,
    reseal,
    sample_id,
    scores,
)
from tests.support.tiny import FEATURES

VALIDATOR = Validator(models())


def changed(**fields) -> TensorSpec:
    return TensorSpec(**({k: getattr(FEATURES, k) for k in FEATURES.__dataclass_fields__} | fields))


def test_a_good_message_becomes_a_job():
    verdict = VALIDATOR.validate(delivery(message(2, label=1), 2))
    assert isinstance(verdict, Job)
    assert verdict.topics == Topics("cam-1")
    assert verdict.header.sample == sample_id(2)
    assert np.array_equal(verdict.features, colour(2))


def test_features_in_another_layout_are_transposed():
    spec = changed(shape=(4, 4, 3), layout="NHWC")
    payload = message(1, spec=spec, features=np.ascontiguousarray(colour(1).transpose(1, 2, 0)))
    verdict = VALIDATOR.validate(delivery(payload, 1))
    assert isinstance(verdict, Job)
    assert np.array_equal(verdict.features, colour(1))


REFUSALS = {
    "short": (b"EKF1", {}, Refusal.MALFORMED),
    "crc": (message()[:-1] + b"\0", {}, Refusal.MALFORMED),
    "magic": (b"JPEG" + message()[4:], {}, Refusal.MALFORMED),
    "version": (reseal(message()[:4] + b"\2" + message()[5:]), {}, Refusal.MALFORMED),
    "oversized": (bytes(48 + 255 + 5), {}, Refusal.OVERSIZED),
    "unknown-model": (message(model=b"stranger"), {}, Refusal.UNKNOWN_MODEL),
    "unknown-cut": (message(cut=1), {}, Refusal.UNKNOWN_MODEL),
    "wrong-shape": (message(spec=changed(shape=(4, 3, 4))), {}, Refusal.WRONG_SHAPE),
    "shape": (
        message(spec=changed(shape=(3, 80, 80)), features=np.zeros((3, 80, 80), np.int8)),
        {},
        Refusal.WRONG_SHAPE,
    ),
    "wrong-dtype": (
        message(spec=changed(dtype="uint8"), features=np.zeros((3, 4, 4), np.uint8)),
        {},
        Refusal.WRONG_SHAPE,
    ),
    "wrong-scale": (message(spec=changed(scale=2.5)), {}, Refusal.WRONG_SHAPE),
    "label": (message(label=3), {}, Refusal.MALFORMED),
    "qos": (message(), {"qos": 0}, Refusal.MALFORMED),
    "topic": (message(), {"topic": "edgekit/1/cam-1/results"}, Refusal.MALFORMED),
    "response-topic": (
        message(),
        {"response_topic": "edgekit/1/cam-2/results"},
        Refusal.MALFORMED,
    ),
    "correlation": (message(), {"correlation": b"another!"}, Refusal.MALFORMED),
}


@pytest.mark.parametrize("side", [10, 80])
def test_what_is_too_large_for_the_bundles_here_may_be_right_for_another_worker(side):
    spec = changed(shape=(3, side, side))
    noise = np.random.default_rng(1).integers(-128, 128, spec.shape).astype(np.int8)
    for features in (noise, np.zeros_like(noise)):
        payload = message(model=b"stranger", spec=spec, features=features)
        verdict = VALIDATOR.validate(delivery(payload))
        assert isinstance(verdict, Refused)
        assert (verdict.reason, verdict.refusal) == ("unknown-model", Refusal.UNKNOWN_MODEL)
        assert verdict.model == b"stranger"


@pytest.mark.parametrize("reason", REFUSALS)
def test_a_bad_message_is_refused_with_its_reason(reason):
    payload, changes, refusal = REFUSALS[reason]
    verdict = VALIDATOR.validate(delivery(payload, **changes))
    assert isinstance(verdict, Refused)
    assert (verdict.reason, verdict.refusal) == (reason, refusal)
    assert verdict.sentence


def test_a_wrong_zero_point_is_refused():
    verdict = VALIDATOR.validate(delivery(message(spec=changed(zero_point=0))))
    assert isinstance(verdict, Refused)
    assert verdict.reason == "wrong-scale"


def test_samples_are_answered_by_the_engine():
    with bench() as b:
        for index in range(6):
            b.send(message(index), index)
        results = {r.sample: r for r in (b.result() for _ in range(6))}
    assert {s: r.label for s, r in results.items()} == {sample_id(i): i % 3 for i in range(6)}
    assert all(r.refusal is Refusal.NONE and r.model == MODEL for r in results.values())
    assert b.clean
    assert len(b.link.acked) == 6
    assert not b.link.unacked


def test_a_resend_costs_no_second_inference():
    tail = fake_tail()
    with bench(models(tail)) as b:
        b.send(message(1), 1)
        first = b.result()
        b.send(message(1), 1)
        assert b.result() == first
    assert tail.engine.calls == 1
    assert b.worker.counters.recent == 1


def test_one_device_does_not_get_the_answer_of_another_with_the_same_sample_id():
    tail = fake_tail()
    with bench(models(tail)) as b:
        b.send(message(1), 1)
        assert b.result().label == 1
        topics = Topics("cam-2")
        payload = message(1, features=colour(2))
        b.send(payload, 1, topic=topics.features, response_topic=topics.results)
        b.send(message(4), 4)
        b.result()
    to_cam_2 = [m for m in b.broker.published if m.topic == topics.results]
    assert [ResultMessage.decode(m.payload).label for m in to_cam_2] == [2]


def test_bundles_are_served_side_by_side():
    other = fake_tail(lambda t: {"logits": -scores(t)["logits"]}, model=b"opposite")
    with bench(models(fake_tail(), other)) as b:
        b.send(message(0), 0)
        b.send(message(1, model=b"opposite", features=colour(1)), 1)
        results = {r.sample: r for r in (b.result(), b.result())}
    assert results[sample_id(0)].label == 0
    assert results[sample_id(1)].model == b"opposite"
    assert results[sample_id(1)].label != 1


def test_batches_form_while_the_engine_is_busy():
    running, go = threading.Event(), threading.Event()
    sizes = []

    def call(tensors):
        sizes.append(len(tensors["features"]))
        running.set()
        assert go.wait(TIMEOUT)
        return scores(tensors)

    with bench(models(fake_tail(call)), batch=4) as b:
        b.send(message(0), 0)
        assert running.wait(TIMEOUT)
        for index in range(1, 6):
            b.send(message(index), index)
        while b.worker.counters.admitted < 6:
            assert not go.wait(0.01)
        go.set()
        results = [b.result() for _ in range(6)]
    assert sizes == [1, 4, 1]
    assert [r.batch for r in results] == [1, 4, 4, 4, 4, 1]


def test_two_lanes_run_two_batches_at_the_same_time():
    both = threading.Barrier(2)

    def call(tensors):
        both.wait(TIMEOUT)
        return scores(tensors)

    with bench(models(fake_tail(call)), batch=1, lanes=2) as b:
        for index in range(2):
            b.send(message(index), index)
        assert {b.result().label for _ in range(2)} == {0, 1}


def test_a_refusal_reaches_the_device_and_is_acknowledged():
    with bench() as b:
        b.send(message(model=b"stranger"), 0)
        result = b.result()
    assert (result.refusal, result.sample) == (Refusal.UNKNOWN_MODEL, sample_id(0))
    assert b.worker.counters.refused == {"unknown-model": 1}
    assert not b.link.unacked


def test_a_worker_never_publishes_elsewhere_than_to_the_device_that_asked():
    with bench() as b:
        b.send(message(0), 0, response_topic="edgekit/1/cam-1/desired")
        result = b.result()
    assert result.refusal is Refusal.MALFORMED
    published = {m.topic for m in b.broker.published}
    assert published == {"edgekit/1/cam-1/features", "edgekit/1/cam-1/results"}


def test_what_names_no_device_is_only_counted_and_acknowledged():
    with bench() as b:
        b.link.deliver(delivery(b"?", topic="elsewhere"))
        b.send(message(0), 0)
        b.result()
    assert b.worker.counters.refused == {"topic": 1}
    assert not b.link.unacked


def test_a_sample_that_breaks_the_engine_does_not_take_its_neighbours_along():
    def call(tensors):
        if (tensors["features"] == 99).any():
            raise EngineError("poison")
        return scores(tensors)

    with bench(models(fake_tail(call)), wait_s=TIMEOUT, batch=3) as b:
        b.send(message(0), 0)
        b.send(message(1, features=np.full(FEATURES.shape, 99, np.int8)), 1)
        b.send(message(2), 2)
        refusals = {r.sample: r.refusal for r in (b.result() for _ in range(3))}
    assert refusals == {
        sample_id(0): Refusal.NONE,
        sample_id(1): Refusal.ENGINE,
        sample_id(2): Refusal.NONE,
    }


def test_logits_that_are_no_numbers_are_refused():
    def call(tensors):
        return {"logits": np.full((len(tensors["features"]), 3), np.nan, np.float32)}

    with bench(models(fake_tail(call))) as b:
        b.send(message(0), 0)
        assert b.result().refusal is Refusal.ENGINE


def test_features_are_acknowledged_only_after_the_result_is():
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


def test_results_that_the_broker_is_slow_to_take_wait_in_order_and_all_arrive():
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
def test_nothing_is_lost_in_a_flood_through_a_real_broker(mosquitto):
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


def test_a_lost_connection_voids_what_is_owed_and_the_resend_is_answered_from_memory():
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


def test_answers_that_were_under_way_when_the_connection_was_lost_count_as_undelivered():
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


def test_a_stopping_worker_finishes_what_it_took():
    running, go = threading.Event(), threading.Event()

    def call(tensors):
        running.set()
        assert go.wait(TIMEOUT)
        return scores(tensors)

    with bench(models(fake_tail(call)), batch=2) as b:
        for index in range(5):
            b.send(message(index), index)
        assert running.wait(TIMEOUT)
        b.worker.stop()
        go.set()
        b.join()
    assert b.clean
    assert {b.result().sample for _ in range(5)} == {sample_id(i) for i in range(5)}
    assert len(b.link.acked) == 5
    assert not b.link.connected


def test_a_stopping_worker_does_not_wait_for_company():
    with bench(wait_s=600.0, batch=4) as b:
        b.send(message(0), 0)
        while b.worker.counters.admitted < 1:
            assert not threading.Event().wait(0.01)
        assert b.worker.counters.inferred == 0
        b.stop()
    assert b.clean
    assert b.result().label == 0


def test_a_stopping_worker_gives_up_in_bounded_time():
    running, go = threading.Event(), threading.Event()

    def call(tensors):
        running.set()
        assert go.wait(TIMEOUT)
        return scores(tensors)

    with bench(models(fake_tail(call)), drain_s=0.1) as b:
        b.send(message(0), 0)
        assert running.wait(TIMEOUT)
        b.stop()
        go.set()
    assert b.clean is False
    assert not b.link.acked


def test_an_engine_that_dies_for_another_reason_stops_the_worker():
    def call(tensors):
        raise ZeroDivisionError

    with bench(models(fake_tail(call))) as b:
        b.send(message(0), 0)
        b.join()
    assert isinstance(b.error, ZeroDivisionError)


def test_a_hopeless_link_stops_the_worker_with_its_sentence():
    with bench() as b:
        b.link.events.put(Disconnected(1, LinkError("bad user or password"), fatal=True))
        b.join()
    assert str(b.error) == "bad user or password"
