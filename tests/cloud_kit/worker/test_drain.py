from __future__ import annotations

import threading

import pytest

from tests.support.messages import (
    TIMEOUT,
    bench,
    fake_tail,
    message,
    models,
    sample_id,
    scores,
)


@pytest.mark.parametrize("lanes", [1, 2])
def test_stopping_worker_finishes_what_it_took(lanes):
    running, go = threading.Event(), threading.Event()

    def call(tensors):
        running.set()
        assert go.wait(TIMEOUT)
        return scores(tensors)

    with bench(models(fake_tail(call)), batch=2, lanes=lanes) as b:
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


def test_stopping_worker_does_not_wait_for_a_fuller_batch():
    with bench(wait_s=600.0, batch=4) as b:
        b.send(message(0), 0)
        while b.worker.counters.admitted < 1:
            assert not threading.Event().wait(0.01)
        assert b.worker.counters.inferred == 0
        b.stop()
    assert b.clean
    assert b.result().label == 0


def test_stopping_worker_gives_up_after_its_drain_time():
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
