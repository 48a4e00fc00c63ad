from __future__ import annotations

import random

import pytest

from edge_kit.delivery.window import Pace, Window


@pytest.fixture
def window() -> Window:
    return Window(Pace(window=4, floor_s=2.0, cap_s=30.0), random.Random(1))


def ids(*numbers: int) -> list[bytes]:
    return [bytes([n]) for n in numbers]


def launch(window: Window, now: float) -> list[bytes]:
    gone = []
    while (sample := window.next(now)) is not None:
        window.sent(sample, 100 * int(now) + sample[0], now)
        gone.append(sample)
    return gone


def test_window_limits_samples_in_flight_and_a_result_makes_room(window):
    window.queue(ids(1, 2, 3, 4, 5, 6))
    assert launch(window, 0) == ids(1, 2, 3, 4)
    assert window.completed(b"\x02", 0.1, result=True) == pytest.approx(0.1)
    assert launch(window, 0.1) == ids(5)


def test_sample_without_result_is_sent_again_with_growing_waits(window):
    window.queue(ids(1))
    waits, now = [], 0.0
    for _ in range(4):
        assert len(launch(window, now)) == 1
        due = window.deadline()
        assert due is not None and window.expire(due - 0.01) == 0
        waits.append(due - now)
        now = due
        assert window.expire(now) == 1
    for index, wait in enumerate(waits[:3]):
        assert 2 * 2**index <= wait <= 1.25 * 2 * 2**index


def test_deferred_sample_is_sent_again_without_backoff(window):
    window.queue(ids(1))
    now = 0.0
    for _ in range(10):
        assert launch(window, now) == ids(1)
        window.deferred(b"\x01", now + 0.1)
        assert now + 1.1 <= window.deadline() <= now + 2.1
        assert window.expire(now + 0.5) == 0  # not at once either
        now = window.deadline()
        assert window.expire(now) == 1
        assert not window.silent
    window.deferred(b"unknown!", now)
    launch(window, now)
    assert window.completed(b"\x01", now + 0.1, result=True) == pytest.approx(now + 0.1)
    assert window.timeout_s == 2.0  # the tries of one sample are no slow cloud


def test_timeout_is_three_times_the_p99_of_round_trips_within_its_bounds(window):
    assert window.timeout_s == 2.0
    for trip in [0.1] * 99 + [3.0]:
        window.queue(ids(1))
        launch(window, 0)
        window.completed(b"\x01", trip, result=True)
    assert window.timeout_s == 9.0


def test_outage_does_not_count_as_a_round_trip(window):
    window.queue(ids(1))
    launch(window, 0)
    window.expire(10)
    launch(window, 10)
    assert window.completed(b"\x01", 1000, result=True) == 1000
    assert window.timeout_s == 6.0


def test_sample_without_answer_gives_its_slot_back(window):
    window.queue(ids(*range(1, 20)))
    stubborn = ids(1, 2)
    answered, now = set(), 0.0
    for _ in range(200):
        for sample in launch(window, now):
            if sample not in stubborn:
                window.completed(sample, now + 0.01, result=True)
                answered.add(sample)
        now = (window.deadline() or now) + 0.001
        window.expire(now)
    assert answered == set(ids(*range(3, 20)))


def test_silent_cloud_is_only_probed_further_and_further_apart(window):
    window.queue(ids(*range(1, 50)))
    sends = []
    now = 0.0
    while now < 600:
        sends += [now for _ in launch(window, now)]
        window.expire(now)
        now += 0.25
    early = sum(1 for t in sends if t < 60)
    late = [t for t in sends if t > 300]
    assert window.silent and early < 20
    assert 2 <= len(late) <= 20
    # One answer, and the whole window is open again.
    sample = next(iter(window._in_flight or window._retry))
    window.completed(sample, now, result=True)
    assert not window.silent and len(launch(window, now)) >= 3


def test_lost_connection_queues_what_was_not_acknowledged_in_order(window):
    window.queue(ids(1, 2, 3, 4, 5))
    launch(window, 0)
    assert window.acknowledged(2) is not None and window.acknowledged(999) is None
    assert window.lost_connection(1) is None
    assert len(window) == 1  # 2 waits for its result
    for sample in ids(1, 3, 4):  # each alone, until one of them ends the connection again
        assert launch(window, 1) == [sample]
        assert window.acknowledged(100 + sample[0]) is not None
    assert launch(window, 1) == []


def test_sample_that_is_answered_while_queued_is_not_sent(window):
    window.queue(ids(1, 2))
    assert window.completed(b"\x01", 0, result=True) is None
    assert launch(window, 0) == ids(2)


def test_sample_that_could_not_be_sent_is_sent_first_next_time(window):
    window.queue(ids(1, 2))
    sample = window.next(0)
    assert sample is not None
    window.put_back(sample)
    assert launch(window, 0) == ids(1, 2)


def test_sample_given_up_before_it_was_sent_is_forgotten(window):
    # a device that is offline for days evicts millions
    window.queue(ids(*range(100)))
    for sample in ids(*range(1, 100)):
        window.completed(sample, 0, result=False)
    assert window.waiting == 1 and launch(window, 0) == ids(0)


def test_sample_given_up_after_its_timeout_is_forgotten(window):
    window.queue(ids(1, 2))
    launch(window, 0)
    assert window.expire(100) == 2 and window.waiting == 2
    window.completed(b"\x01", 100, result=False)
    assert window.waiting == 1 and launch(window, 100) == ids(2)
