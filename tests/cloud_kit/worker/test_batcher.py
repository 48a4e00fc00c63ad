from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud_kit.worker.batcher import Batcher
from cloud_kit.worker.recent import Recent

TIMEOUT = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(size=4, wait_s=0.0, clock=None) -> Batcher:
    return Batcher(size, wait_s, lambda job: job[0], clock or Clock())


def test_batch_without_a_wait_is_what_is_queued():
    batcher = make()
    for index in range(3):
        batcher.put(("a", index))
    assert batcher.take() == [("a", 0), ("a", 1), ("a", 2)]
    assert len(batcher) == 0


def test_batch_is_never_larger_than_its_size():
    batcher = make(size=2)
    for index in range(5):
        batcher.put(("a", index))
    assert [len(batcher.take()) for _ in range(3)] == [2, 2, 1]


def test_groups_stay_apart_and_the_oldest_goes_first():
    clock = Clock()
    batcher = make(clock=clock)
    for job in (("b", 0), ("a", 1), ("b", 2)):
        clock.now += 1
        batcher.put(job)
    assert batcher.take() == [("b", 0), ("b", 2)]
    assert batcher.take() == [("a", 1)]


def test_full_group_goes_before_a_waiting_one():
    batcher = make(size=2, wait_s=10)
    for job in (("a", 0), ("b", 1), ("b", 2)):
        batcher.put(job)
    assert batcher.take() == [("b", 1), ("b", 2)]


def test_overdue_group_goes_before_a_full_one():
    clock = Clock()
    batcher = make(size=2, wait_s=10, clock=clock)
    batcher.put(("a", 0))
    clock.now = 11
    batcher.put(("b", 1))
    batcher.put(("b", 2))
    assert batcher.take() == [("a", 0)]


def test_single_job_leaves_after_its_wait():
    batcher = Batcher(4, 0.05, lambda job: job[0])
    batcher.put(("a", 0))
    assert batcher.take() == [("a", 0)]


def test_job_that_comes_within_the_wait_joins_the_batch():
    batcher = Batcher(2, TIMEOUT, lambda job: job[0])
    taken: list = []
    taker = threading.Thread(target=lambda: taken.extend(batcher.take()))
    taker.start()
    batcher.put(("a", 0))
    batcher.put(("a", 1))
    taker.join(TIMEOUT)
    assert taken == [("a", 0), ("a", 1)]


def test_closed_batcher_returns_the_rest_and_then_nothing():
    batcher = make(wait_s=1000)
    batcher.put(("a", 0))
    batcher.close()
    assert batcher.take() == [("a", 0)]
    assert batcher.take() == []
    with pytest.raises(ValueError, match="closed"):
        batcher.put(("a", 1))


@pytest.mark.parametrize(("size", "wait_s"), [(0, 0.0), (1, -1.0)])
def test_size_or_wait_out_of_range_is_refused(size, wait_s):
    with pytest.raises(ValueError, match="must be at least"):
        make(size, wait_s)


@given(
    groups=st.lists(st.integers(0, 3), max_size=60),
    size=st.integers(1, 7),
)
def test_every_job_leaves_once_in_order_within_its_group(groups, size):
    batcher = make(size=size)
    jobs = [(group, index) for index, group in enumerate(groups)]
    for job in jobs:
        batcher.put(job)
    batcher.close()
    out = []
    while batch := batcher.take():
        assert len(batch) <= size
        assert len({group for group, _ in batch}) == 1
        out += batch
    for group in set(groups):
        assert [j for j in out if j[0] == group] == [j for j in jobs if j[0] == group]
    assert sorted(out) == sorted(jobs)


def test_recent_forgets_the_least_recently_used():
    recent: Recent[str] = Recent(2)
    recent.put("a", "A")
    recent.put("b", "B")
    assert recent.get("a") == "A"
    recent.put("c", "C")
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == ("A", None, "C")
    assert len(recent) == 2


def test_recent_of_size_zero_remembers_nothing():
    recent: Recent[str] = Recent(0)
    recent.put("a", "A")
    assert recent.get("a") is None


def test_two_takers_get_two_batches_that_came_together():
    batcher = make(size=1)
    taken = []
    takers = [threading.Thread(target=lambda: taken.append(batcher.take())) for _ in range(2)]
    for taker in takers:
        taker.start()
    while len(batcher._changed._waiters) < 2:
        threading.Event().wait(0.01)
    with batcher._changed:  # no taker sees one job without the other
        batcher.put(("a", 0))
        batcher.put(("a", 1))
    for taker in takers:
        taker.join(5)
    assert sorted(taken) == [[("a", 0)], [("a", 1)]]
    batcher.close()
