"""What the outbox does while its spool cannot be used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_kit.errors import SpoolDamagedError, SpoolError
from tests.support.rig import Rig, low_confidence, spoil


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "spool.db")
    yield rig
    rig.spool.close()


def test_full_disk_keeps_own_answers_of_new_samples_and_loses_no_old_one(rig):
    rig.connect()
    rig.box.submit([low_confidence(0)])
    (message,) = rig.received()
    settle = rig.spool.settle

    def full(*args, **kwargs):
        raise SpoolError("the disk under the spool is full", "free some space")

    rig.spool.settle = full
    rig.box.submit([low_confidence(1)])
    assert rig.out[-1].status == "standing" and "is full" in rig.out[-1].reason
    assert rig.box.trouble is not None and rig.received() == []
    rig.answer(message)
    rig.later(1.1)
    assert rig.link.acked == []  # not recorded, so not acknowledged
    rig.spool.settle = settle
    rig.later(6)
    assert len(rig.link.acked) == 1 and rig.box.trouble is None
    rig.box.submit([low_confidence(2)])
    assert len(rig.received()) == 1
    run = rig.box.counters
    assert (run.offloaded, run.answered, run.unspooled) == (2, 1, 1)
    assert rig.box.backlog().lost == 0


def test_spool_that_cannot_be_read_leaves_the_result_unacknowledged(rig):
    rig.connect()
    rig.box.submit([low_confidence()])
    (message,) = rig.received()
    get = rig.spool.get

    def broken(sample):
        raise SpoolError("cannot read")

    rig.spool.get = broken
    rig.answer(message)
    rig.box.flush()
    assert rig.link.acked == [] and rig.box.pending == 1
    rig.spool.get = get
    rig.answer(message)
    rig.box.flush()
    assert rig.statuses()[-1] == ("cloud", "final") and rig.box.pending == 0


def test_spool_that_is_closed_at_start_is_opened_later_and_its_samples_are_sent(tmp_path):
    before = Rig(tmp_path / "state" / "spool.db")
    before.box.submit([low_confidence(0)])
    before.spool.close()
    (tmp_path / "state").rename(tmp_path / "away")
    (tmp_path / "state").write_text("in the way")

    rig = Rig(tmp_path / "state" / "spool.db")
    rig.connect()
    rig.box.submit([low_confidence(1)])
    assert [(r.source, r.status) for r in rig.out] == [("1.jpg", "standing")]
    assert "cannot be made" in rig.out[0].reason and "cannot be made" in str(rig.box.trouble)
    rig.later(5.1)
    assert rig.box.trouble is not None and rig.received() == []

    (tmp_path / "state").unlink()
    (tmp_path / "away").rename(tmp_path / "state")
    rig.later(5.1)
    assert rig.box.trouble is None and rig.box.pending == 1
    rig.box.submit([low_confidence(2)])
    for message in rig.received():
        rig.answer(message)
    finals = {r.source for r in rig.out if r.status == "final"}
    assert finals == {"0.jpg", "2.jpg"}
    run = rig.box.counters
    assert (run.unspooled, run.standing, run.offloaded, run.answered) == (1, 1, 1, 2)
    assert rig.box.backlog().lost == 0 and rig.box.pending == 0
    rig.spool.close()


def test_result_that_comes_while_the_spool_is_closed_is_not_lost(tmp_path):
    rig = Rig(tmp_path / "state" / "spool.db")
    rig.connect()
    rig.box.submit([low_confidence(0)])
    (message,) = rig.received()
    rig.spool.close()
    (tmp_path / "state").rename(tmp_path / "away")
    (tmp_path / "state").write_text("in the way")
    rig.broker.links.remove(rig.link)
    rig.open()
    rig.connect()
    rig.answer(message)
    rig.later(1.1)
    assert rig.link.acked == []
    (tmp_path / "state").unlink()
    (tmp_path / "away").rename(tmp_path / "state")
    rig.later(5.1)
    (again,) = rig.received()
    rig.answer(again)
    assert rig.statuses()[-1] == ("cloud", "final")
    rig.spool.close()


def test_damaged_spool_is_replaced_and_its_samples_keep_their_own_answers(rig):
    rig.box.submit([low_confidence(n) for n in range(3)])
    spoil(rig.path)
    rig.connect()
    rig.box.tick()
    run, backlog = rig.box.counters, rig.box.backlog()
    assert run.standing + backlog.lost == 3 and rig.box.pending == 0
    assert "put aside" in rig.spool.notice and rig.box.trouble is None
    assert rig.spool.counters()["damaged"] == 1
    rig.box.submit([low_confidence(4)])
    rig.answer(rig.received()[-1])
    assert rig.statuses()[-1] == ("cloud", "final")


def test_readable_samples_of_a_damaged_spool_get_one_more_result_each(rig, monkeypatch):
    rig.connect()
    rig.box.submit([low_confidence(n) for n in range(3)])
    answered, *_rest = rig.received()
    rig.answer(answered)  # not recorded yet

    def damaged(*_args):
        raise SpoolDamagedError("the spool is damaged")

    monkeypatch.setattr(rig.spool, "settle", damaged)
    rig.box.flush()
    monkeypatch.undo()
    rig.box.tick()
    assert [(r.source, r.status) for r in rig.out[3:]] == [
        ("0.jpg", "final"), ("1.jpg", "standing"), ("2.jpg", "standing"),
    ]  # fmt: skip
    assert {r.reason for r in rig.out[4:]} == {"the spool was damaged"}
    assert len(rig.link.acked) == 1 and rig.box.backlog().lost == 0
    assert len(list(rig.path.parent.glob("*.corrupt-*"))) == 1
