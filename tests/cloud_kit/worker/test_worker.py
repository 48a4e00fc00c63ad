from __future__ import annotations

import threading

import numpy as np

from edge_kit.errors import EngineError, LinkError
from edge_kit.link import Disconnected
from edge_kit.wire import Refusal, ResultMessage, Topics
from tests.support.messages import (
    MODEL,
    TIMEOUT,
    bench,
    colour,
    delivery,
    fake_tail,
    message,
    models,
    sample_id,
    scores,
)
from tests.support.tiny import FEATURES


def test_every_sample_is_answered_by_the_engine():
    with bench() as b:
        for index in range(6):
            b.send(message(index), index)
        results = {r.sample: r for r in (b.result() for _ in range(6))}
    assert {s: r.label for s, r in results.items()} == {sample_id(i): i % 3 for i in range(6)}
    assert all(r.refusal is Refusal.NONE and r.model == MODEL for r in results.values())
    assert b.clean
    assert len(b.link.acked) == 6
    assert not b.link.unacked


def test_resend_is_answered_without_a_second_inference():
    tail = fake_tail()
    with bench(models(tail)) as b:
        b.send(message(1), 1)
        first = b.result()
        b.send(message(1), 1)
        assert b.result() == first
    assert tail.engine.calls == 1
    assert b.worker.counters.recent == 1


def test_equal_sample_ids_of_two_devices_get_their_own_answers():
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


def test_two_bundles_are_served_at_once():
    other = fake_tail(lambda t: {"logits": -scores(t)["logits"]}, model=b"opposite")
    with bench(models(fake_tail(), other)) as b:
        b.send(message(0), 0)
        b.send(message(1, model=b"opposite", features=colour(1)), 1)
        results = {r.sample: r for r in (b.result(), b.result())}
    assert results[sample_id(0)].label == 0
    assert results[sample_id(1)].model == b"opposite"
    assert results[sample_id(1)].label != 1


def test_batch_forms_while_the_engine_is_busy():
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


def test_refusal_reaches_the_device_and_is_acknowledged():
    with bench() as b:
        b.send(message(model=b"nobody's"), 0)
        result = b.result()
    assert (result.refusal, result.sample) == (Refusal.UNKNOWN_MODEL, sample_id(0))
    assert b.worker.counters.refused == {"unknown-model": 1}
    assert not b.link.unacked


def test_foreign_response_topic_is_never_published_to():
    with bench() as b:
        b.send(message(0), 0, response_topic="edgekit/1/cam-1/desired")
        result = b.result()
    assert result.refusal is Refusal.MALFORMED
    published = {m.topic for m in b.broker.published}
    assert published == {"edgekit/1/cam-1/features", "edgekit/1/cam-1/results"}


def test_message_without_a_device_is_counted_and_acknowledged():
    with bench() as b:
        b.link.deliver(delivery(b"?", topic="elsewhere"))
        b.send(message(0), 0)
        b.result()
    assert b.worker.counters.refused == {"topic": 1}
    assert not b.link.unacked


def test_sample_that_the_engine_refuses_does_not_fail_its_batch():
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


def test_logits_that_are_not_finite_are_refused():
    def call(tensors):
        return {"logits": np.full((len(tensors["features"]), 3), np.nan, np.float32)}

    with bench(models(fake_tail(call))) as b:
        b.send(message(0), 0)
        assert b.result().refusal is Refusal.ENGINE


def test_unexpected_engine_error_stops_the_worker():
    def call(tensors):
        raise ZeroDivisionError

    with bench(models(fake_tail(call))) as b:
        b.send(message(0), 0)
        b.join()
    assert isinstance(b.error, ZeroDivisionError)


def test_fatal_disconnect_stops_the_worker_with_its_message():
    with bench() as b:
        b.link.events.put(Disconnected(1, LinkError("bad user or password"), fatal=True))
        b.join()
    assert str(b.error) == "bad user or password"
