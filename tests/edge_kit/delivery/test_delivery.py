from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_kit.link import Disconnected, Published
from edge_kit.wire import Refusal, ResultMessage
from tests.support.rig import MODEL, TOPICS, Rig, low_confidence


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "spool.db")
    yield rig
    rig.spool.close()


def test_low_confidence_sample_is_reported_sent_answered_and_counted_once(rig):
    rig.connect()
    rig.box.submit([low_confidence(7)])
    (message,) = rig.received()
    assert (message.features == 7).all() and message.header.model == MODEL
    rig.clock.now += 0.05
    rig.answer(message)

    first, second = rig.out
    sample = message.header.sample.hex()
    assert (first.tier, first.status, first.sample) == ("device", "provisional", sample)
    assert first.bytes_sent == len(message.encode())
    assert (second.tier, second.status, second.sample) == ("cloud", "final", sample)
    assert (second.label, second.class_name, second.source) == (2, "blue", "7.jpg")
    assert second.round_trip_ms == pytest.approx(50)
    assert second.latency_ms == pytest.approx(1050)
    rig.box.flush()
    assert rig.spool.counters()["answered"] == 1 and rig.box.pending == 0


def test_sample_is_stored_before_it_is_reported_and_reported_before_it_is_sent(rig):
    order = []
    rig.box._emit = lambda r: order.append(("emit", len(rig.spool)))
    publish = rig.link.publish
    rig.link.publish = lambda *a, **k: order.append(("send", len(rig.spool))) or publish(*a, **k)
    rig.connect()
    rig.box.submit([low_confidence()])
    assert order == [("emit", 1), ("send", 1)]


def test_result_is_acknowledged_only_after_it_is_recorded(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    rig.answer(rig.received()[0])
    assert rig.link.acked == [] and "answered" not in rig.spool.counters()
    rig.later(1.1)
    assert len(rig.link.acked) == 1 and rig.spool.counters()["answered"] == 1


def test_result_shares_its_commit_with_the_next_sample(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    rig.answer(rig.received()[0])
    rig.box.submit([low_confidence(1)])
    assert len(rig.link.acked) == 1 and rig.spool.counters()["answered"] == 1


def test_second_result_of_a_sample_is_a_duplicate_before_and_after_the_commit(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    (message,) = rig.received()
    for _ in range(2):
        rig.answer(message)
    rig.later(1.1)
    rig.answer(message, label=1)
    rig.later(1.1)
    assert rig.statuses() == [("device", "provisional"), ("cloud", "final")]
    assert rig.spool.counters()["duplicates"] == 2 and rig.spool.counters()["answered"] == 1
    assert len(rig.link.acked) == 3


def test_samples_are_sent_only_once_connected(rig):
    rig.box.submit([low_confidence(n) for n in range(3)])
    rig.later(1000)
    assert rig.received() == [] and rig.box.pending == 3
    rig.connect()
    assert [int(m.features.flat[0]) for m in rig.received()] == [0, 1, 2]


def test_lost_message_is_sent_again_and_answered_once(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    rig.received()
    rig.later(1.9)
    assert rig.received() == []
    rig.later(0.7)
    (again,) = rig.received()
    rig.answer(again)
    assert rig.statuses()[-1] == ("cloud", "final")
    assert rig.box.counters.resent == 1


def test_no_resend_happens_while_offline(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    rig.received()
    rig.link.drop()
    rig.settle_link()
    rig.later(100)
    assert rig.received() == []
    rig.connect()
    rig.later(0.1)
    assert len(rig.received()) == 1


def test_unanswered_samples_are_sent_first_with_the_same_id_after_a_crash(rig):
    rig.connect()
    rig.box.submit([low_confidence(n) for n in range(2)])
    before = [m.header.sample for m in rig.received()]
    rig.crash()
    rig.connect()
    again = rig.received()
    assert [m.header.sample for m in again] == before
    rig.answer(again[0])
    assert rig.out[-1].source == "0.jpg" and rig.out[-1].tier == "cloud"
    assert rig.out[-1].latency_ms == pytest.approx(1000)


def test_crash_between_report_and_commit_reports_again_and_counts_once(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    (message,) = rig.received()
    rig.answer(message)
    rig.crash()  # the result was neither recorded nor acknowledged
    rig.connect()
    rig.answer(rig.received()[0])
    rig.box.flush()
    finals = [r for r in rig.out if r.status == "final"]
    assert len(finals) == 2 and finals[0].sample == finals[1].sample
    assert rig.spool.counters()["answered"] == 1


FINAL = [r for r in Refusal if r not in (Refusal.NONE, Refusal.UNKNOWN_MODEL)]


@pytest.mark.parametrize("refusal", FINAL)
def test_refused_sample_keeps_its_own_answer(rig, refusal):
    rig.connect()
    rig.box.submit([low_confidence()])
    rig.answer(rig.received()[0], refusal=refusal)
    last = rig.out[-1]
    assert (last.tier, last.status, last.class_name) == ("device", "standing", "red")
    assert refusal.name.lower().replace("_", " ") in last.reason
    rig.later(100)
    assert rig.received() == [] and rig.spool.counters()["refused"] == 1


def test_worker_without_the_bundle_does_not_take_the_answer_of_one_that_has_it(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    (message,) = rig.received()
    rig.answer(message, model=bytes(8), refusal=Refusal.UNKNOWN_MODEL)
    rig.answer(message)  # another pool was slower
    assert rig.statuses() == [("device", "provisional"), ("cloud", "final")]
    rig.later(100)
    assert rig.received() == [] and rig.spool.counters()["answered"] == 1


def test_sample_whose_model_the_worker_does_not_know_is_offered_to_others(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    rig.answer(rig.received()[0], refusal=Refusal.UNKNOWN_MODEL)
    assert rig.received() == []  # not at once
    rig.later(2.6)
    rig.answer(rig.received()[0])
    assert rig.statuses()[-1] == ("cloud", "final")


def test_model_that_nobody_knows_is_given_up_soon(rig):
    rig.connect()
    rig.box.submit([low_confidence(n) for n in range(12)])
    sent = 0
    for _ in range(40):
        for message in rig.received():
            sent += 1
            rig.answer(message, refusal=Refusal.UNKNOWN_MODEL)
        rig.later(1)
    assert rig.spool.counters()["refused"] == 12 and rig.box.pending == 0
    assert {r.reason for r in rig.out[12:]} == {"the worker refused it: unknown model"}
    assert sent < 3 * 12
    assert rig.box._window._records == {}


def test_publish_that_the_broker_refuses_ends_the_sample(rig):
    rig.connect()
    route = rig.broker.route
    rig.broker.route = lambda message: None
    publish = rig.link.publish

    def refuse(*args, **kwargs):
        token = publish(*args, **kwargs)
        rig.link.events.get()
        rig.link.events.put(Published(token, rig.link.generation, "Packet too large"))
        return token

    rig.link.publish = refuse
    rig.box.submit([low_confidence()])
    rig.settle_link()
    rig.broker.route = route
    assert rig.out[-1].status == "standing" and "Packet too large" in rig.out[-1].reason
    rig.box.flush()
    assert rig.spool.counters()["refused"] == 1 and rig.box.pending == 0


def lose_unacknowledged(rig: Rig) -> None:
    """Drop the connection with every PUBACK still under way."""
    kept = []
    while not rig.link.events.empty():
        event = rig.link.events.get()
        if not isinstance(event, Published):
            kept.append(event)
    rig.link.drop()
    for event in kept:
        rig.box.handle(event)
    rig.settle_link()


def test_message_that_ends_every_connection_is_given_up_and_others_are_sent(rig):
    rig.link.start()
    rig.box.handle(rig.link.events.get())
    rig.box.submit([low_confidence(n) for n in range(4)])
    poison = rig.received()[1].header.sample
    drops = 0
    while not rig.link.events.empty():
        if any(f.sample == poison for f in rig.box._window.unacknowledged()):
            # The broker takes each message but this one, which it closes the connection over.
            lose_unacknowledged(rig)
            drops += 1
            rig.clock.now += 1
            rig.link.start()
        rig.box.handle(rig.link.events.get())
    assert drops == 4
    standing = [r for r in rig.out if r.status == "standing"]
    assert [r.sample for r in standing] == [poison.hex()]
    assert "ends the connection" in standing[0].reason
    others = {m.header.sample for m in rig.received()} - {poison}
    assert len(others) == 3


def test_broker_that_dies_often_loses_no_sample(rig):
    rig.connect()
    rig.box.submit([low_confidence(n) for n in range(4)])
    for _ in range(6):
        lose_unacknowledged(rig)
        # It cannot be reached for a while: attempts fail in between.
        rig.box.handle(Disconnected(rig.link.generation, None))
        rig.clock.now += 3
        rig.link.start()
        rig.box.handle(rig.link.events.get())
    assert all(r.status == "provisional" for r in rig.out) and rig.box.pending == 4


def test_evicted_sample_keeps_its_own_answer_and_a_late_result_is_a_duplicate(tmp_path):
    rig = Rig(tmp_path / "s.db", max_bytes=150)
    rig.connect()
    rig.box.submit([low_confidence(0)])
    (first,) = rig.received()
    rig.box.submit([low_confidence(1)])
    rig.box.submit([low_confidence(2)])
    standing = [r for r in rig.out if r.status == "standing"]
    assert [r.source for r in standing] == ["0.jpg"] and "full" in standing[0].reason
    rig.answer(first)
    rig.box.flush()
    counters = rig.spool.counters()
    assert counters["evicted"] == 1 and counters["duplicates"] == 1
    assert rig.box.backlog().lost == 0
    rig.spool.close()


def test_expired_sample_keeps_its_own_answer(tmp_path):
    rig = Rig(tmp_path / "s.db", max_age_s=60)
    rig.box.submit([low_confidence()])
    rig.later(61)
    assert rig.statuses() == [("device", "provisional"), ("device", "standing")]
    rig.later(1)
    assert rig.spool.counters()["expired"] == 1
    rig.connect()
    assert rig.received() == []
    rig.spool.close()


def test_samples_that_expired_in_a_long_absence_are_given_up_at_once(tmp_path):
    rig = Rig(tmp_path / "s.db", max_age_s=60)
    rig.box.submit([low_confidence(n) for n in range(100)])
    rig.clock.now += 61
    ticks = 0
    while rig.box.deadline() <= rig.clock.now:
        rig.box.tick()
        ticks += 1
        assert ticks < 10
    assert rig.spool.counters()["expired"] == 100 and rig.box.pending == 0
    rig.box.flush()
    assert rig.spool.counters()["standing"] == 100
    rig.spool.close()


def test_malformed_and_unknown_results_are_counted_and_acknowledged_only(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    (message,) = rig.received()
    for payload in (b"", b"junk" * 20, ResultMessage(MODEL, b"stranger").encode()):
        rig.worker.publish(TOPICS.results, payload)
    rig.settle_link()
    rig.later(1.1)
    assert len(rig.link.acked) == 3 and rig.box.pending == 1
    assert rig.spool.counters() | {"malformed": 2, "strangers": 1} == rig.spool.counters()
    rig.answer(message)
    assert rig.statuses()[-1] == ("cloud", "final")


def test_answer_of_another_model_keeps_its_number_without_a_class_name(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    rig.answer(rig.received()[0], model=b"\x02" * 8, label=1)
    assert (rig.out[-1].label, rig.out[-1].class_name) == (1, "class 1")


def test_random_losses_and_crashes_end_with_one_counted_result_each(tmp_path):
    rng = random.Random(5)
    rig = Rig(tmp_path / "s.db", sync="normal")
    total = 0
    for _ in range(400):
        action = rng.random()
        if action < 0.4 and total < 100:
            rig.box.submit([low_confidence(total % 100)])
            total += 1
        elif action < 0.5:
            rig.link.drop()
            rig.settle_link()
        elif action < 0.55:
            rig.crash()
        else:
            rig.connect()
        for message in rig.received():
            fate = rng.random()
            if fate < 0.5:
                rig.answer(message)
            if fate < 0.1:
                rig.answer(message)
        rig.later(rng.random() * 5)
    for _ in range(500):
        if not rig.box.pending:
            break
        rig.connect()
        for message in rig.received():
            rig.answer(message)
        rig.later(1)
    rig.box.flush()
    counters = rig.spool.counters()
    assert counters["offloaded"] == counters["answered"] == total
    finals = {r.sample for r in rig.out if r.status == "final"}
    assert len(finals) == total
    rig.spool.close()
