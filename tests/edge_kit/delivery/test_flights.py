from __future__ import annotations

import random

import pytest

from edge_kit.delivery.flights import Flights, Pace


@pytest.fixture
def flights() -> Flights:
    return Flights(Pace(window=4, floor_s=2.0, cap_s=30.0), random.Random(1))


def ids(*numbers: int) -> list[bytes]:
    return [bytes([n]) for n in numbers]


def launch(flights: Flights, now: float) -> list[bytes]:
    gone = []
    while (sample := flights.next(now)) is not None:
        flights.sent(sample, 100 * int(now) + sample[0], now)
        gone.append(sample)
    return gone


def test_no_more_than_the_window_goes_out_and_a_result_makes_room(flights):
    flights.queue(ids(1, 2, 3, 4, 5, 6))
    assert launch(flights, 0) == ids(1, 2, 3, 4)
    assert flights.landed(b"\x02", 0.1, result=True) == pytest.approx(0.1)
    assert launch(flights, 0.1) == ids(5)


def test_a_sample_without_result_is_sent_again_with_growing_waits(flights):
    flights.queue(ids(1))
    waits, now = [], 0.0
    for _ in range(4):
        assert len(launch(flights, now)) == 1
        due = flights.deadline()
        assert due is not None and flights.expire(due - 0.01) == 0
        waits.append(due - now)
        now = due
        assert flights.expire(now) == 1
    for index, wait in enumerate(waits[:3]):
        assert 2 * 2**index <= wait <= 1.25 * 2 * 2**index


def test_a_sample_that_a_worker_passes_on_is_sent_again_without_backoff(flights):
    flights.queue(ids(1))
    now = 0.0
    for _ in range(10):
        assert launch(flights, now) == ids(1)
        flights.passed_on(b"\x01", now + 0.1)
        assert now + 1.1 <= flights.deadline() <= now + 2.1
        assert flights.expire(now + 0.5) == 0  # not at once either
        now = flights.deadline()
        assert flights.expire(now) == 1
        assert not flights.silent
    flights.passed_on(b"unknown!", now)
    launch(flights, now)
    assert flights.landed(b"\x01", now + 0.1, result=True) == pytest.approx(now + 0.1)
    assert flights.timeout_s == 2.0  # the tries of one sample are no slow cloud


def test_t_is_three_times_the_p99_of_round_trips_within_its_bounds(flights):
    assert flights.timeout_s == 2.0
    for trip in [0.1] * 99 + [3.0]:
        flights.queue(ids(1))
        launch(flights, 0)
        flights.landed(b"\x01", trip, result=True)
    assert flights.timeout_s == 9.0


def test_an_outage_is_no_round_trip(flights):
    flights.queue(ids(1))
    launch(flights, 0)
    flights.expire(10)
    launch(flights, 10)
    assert flights.landed(b"\x01", 1000, result=True) == 1000
    assert flights.timeout_s == 6.0


def test_a_stubborn_sample_gives_its_slot_back_and_blocks_nobody(flights):
    flights.queue(ids(*range(1, 20)))
    stubborn = ids(1, 2)
    answered, now = set(), 0.0
    for _ in range(200):
        for sample in launch(flights, now):
            if sample not in stubborn:
                flights.landed(sample, now + 0.01, result=True)
                answered.add(sample)
        now = (flights.deadline() or now) + 0.001
        flights.expire(now)
    assert answered == set(ids(*range(3, 20)))


def test_a_silent_cloud_is_only_probed_further_and_further_apart(flights):
    flights.queue(ids(*range(1, 50)))
    sends = []
    now = 0.0
    while now < 600:
        sends += [now for _ in launch(flights, now)]
        flights.expire(now)
        now += 0.25
    early = sum(1 for t in sends if t < 60)
    late = [t for t in sends if t > 300]
    assert flights.silent and early < 20
    assert 2 <= len(late) <= 20
    # One answer, and the whole window is open again.
    sample = next(iter(flights._up or flights._again))
    flights.landed(sample, now, result=True)
    assert not flights.silent and len(launch(flights, now)) >= 3


def test_a_lost_connection_queues_what_was_not_acknowledged_in_order(flights):
    flights.queue(ids(1, 2, 3, 4, 5))
    launch(flights, 0)
    assert flights.acknowledged(2) is not None and flights.acknowledged(999) is None
    lost = flights.lost_connection()
    assert [f.sample for f in lost] == ids(1, 3, 4)
    assert len(flights) == 1  # 2 waits for its result
    assert launch(flights, 1) == ids(1, 3, 4)


def test_a_sample_that_is_answered_while_queued_is_not_sent(flights):
    flights.queue(ids(1, 2))
    assert flights.landed(b"\x01", 0, result=True) is None
    assert launch(flights, 0) == ids(2)


def test_what_could_not_be_sent_goes_first_next_time(flights):
    flights.queue(ids(1, 2))
    sample = flights.next(0)
    assert sample is not None
    flights.put_back(sample)
    assert launch(flights, 0) == ids(1, 2)


def test_what_was_given_up_unsent_is_not_remembered(flights):
    # a device that is offline for days evicts millions
    flights.queue(ids(*range(100)))
    for sample in ids(*range(1, 100)):
        flights.landed(sample, 0, result=False)
    assert flights.waiting == 1 and launch(flights, 0) == ids(0)


def test_what_expired_and_was_then_given_up_is_not_remembered_either(flights):
    flights.queue(ids(1, 2))
    launch(flights, 0)
    assert flights.expire(100) == 2 and flights.waiting == 2
    flights.landed(b"\x01", 100, result=False)
    assert flights.waiting == 1 and launch(flights, 100) == ids(2)
