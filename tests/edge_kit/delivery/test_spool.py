from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from edge_kit.delivery.spool import ID_BLOCK, Outcome, Row, Spool
from edge_kit.delivery.spool_file import SpoolFile
from edge_kit.errors import SpoolDamagedError, SpoolError
from tests.support.rig import spoil


class Clock:
    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "spool.db"


def add(spool: Spool, size: int = 10, provisional: str = "{}") -> bytes:
    sample = spool.next_id()
    spool.settle([Row(sample, bytes(size), provisional)])
    return sample


def test_sample_stays_until_it_is_answered_and_is_counted_once(path):
    spool = Spool(path)
    sample = add(spool, provisional='{"label": 1}')
    assert spool.get(sample) == Row(sample, bytes(10), '{"label": 1}')
    assert spool.pending() == [sample] and spool.nbytes == 10

    spool.settle(ends={sample: Outcome.ANSWERED})
    spool.settle(ends={sample: Outcome.ANSWERED})

    assert spool.pending() == [] and spool.nbytes == 0 and spool.get(sample) is None
    assert spool.counters() == {"offloaded": 1, "answered": 1}
    assert spool.is_ours(sample)
    spool.close()


def test_samples_and_counters_survive_reopening_in_order(path):
    spool = Spool(path)
    samples = [add(spool) for _ in range(5)]
    spool.settle(ends={samples[1]: Outcome.REFUSED}, counts={"frames": 7})
    spool.close()
    again = Spool(path)
    assert again.pending() == [samples[0], *samples[2:]] and again.nbytes == 40
    assert again.counters() == {"offloaded": 5, "refused": 1, "frames": 7}
    again.close()


def test_ids_never_repeat_after_a_clean_close_or_a_crash(path):
    spool = Spool(path)
    first = [spool.next_id() for _ in range(3)]
    spool.close()
    spool = Spool(path)
    second = spool.next_id()
    assert int.from_bytes(second[4:], "little") == 4 and second[:4] == first[0][:4]
    # A crash: nothing is written back.
    spool._file._db.close()
    spool._file._lock.close()
    spool = Spool(path)
    third = [spool.next_id() for _ in range(2 * ID_BLOCK)]
    assert len({*first, second, *third}) == 4 + 2 * ID_BLOCK
    spool.close()


def test_two_files_give_different_ids(tmp_path):
    one, two = Spool(tmp_path / "1.db"), Spool(tmp_path / "2.db")
    sample = one.next_id()
    assert sample[:4] != two.next_id()[:4] and not two.is_ours(sample)
    one.close()
    two.close()


def test_full_spool_evicts_the_oldest_unanswered_sample(path):
    spool = Spool(path, max_bytes=100)
    samples = [add(spool, 40, str(n)) for n in range(2)]
    newest = spool.next_id()
    evicted = spool.settle([Row(newest, bytes(40), "2")])
    assert [(r.sample, r.provisional) for r in evicted] == [(samples[0], "0")]
    assert spool.pending() == [samples[1], newest] and spool.nbytes == 80
    assert spool.counters() == {"offloaded": 3, "evicted": 1}
    spool.close()


def test_sample_answered_in_the_same_commit_makes_room_before_others_are_evicted(path):
    spool = Spool(path, max_bytes=100)
    samples = [add(spool, 40) for _ in range(2)]
    newest = Row(spool.next_id(), bytes(40), "")
    assert spool.settle([newest], {samples[1]: Outcome.ANSWERED}) == []
    assert spool.pending() == [samples[0], newest.sample]
    spool.close()


def test_old_samples_are_overdue_by_the_monotonic_clock(path):
    wall, mono = Clock(), Clock(0.0)
    spool = Spool(path, max_age_s=60, clock=wall, monotonic=mono)
    sample = add(spool)
    wall.now += 10 * 365 * 86400  # the time service sets the clock: nothing ages by that
    assert spool.overdue() == []
    mono.now += 61
    young = add(spool)
    assert spool.overdue() == [sample]
    spool.settle(ends={sample: Outcome.EXPIRED})
    assert spool.pending() == [young] and spool.overdue() == []
    assert spool.counters()["expired"] == 1
    spool.close()


def test_age_counts_on_over_a_restart_unless_the_clock_was_never_set(tmp_path):
    for stored_at, overdue in ((1_800_000_000.0, 1), (100.0, 0)):
        path = tmp_path / f"{overdue}.db"
        spool = Spool(path, max_age_s=60, clock=Clock(stored_at))
        add(spool)
        spool.close()
        spool = Spool(path, max_age_s=60, clock=Clock(1_800_000_100.0))
        assert len(spool.overdue()) == overdue
        spool.close()


def test_only_one_process_holds_a_spool(path):
    spool = Spool(path)
    with pytest.raises(SpoolError, match="another edge-kit uses the spool"):
        Spool(path)
    spool.close()
    Spool(path).close()


@pytest.mark.parametrize("damage", ["garbage", "truncated", "middle"])
def test_damaged_file_is_put_aside_counted_and_replaced(path, damage):
    spool = Spool(path)
    for _ in range(200):
        add(spool, 500)
    spool.close()
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data[:] = os.urandom(len(data))
    elif damage == "truncated":
        del data[len(data) // 2 :]
    else:
        data[4096:12288] = b"\xff" * 8192
    path.write_bytes(data)

    spool = Spool(path)
    assert "damaged" in spool.notice and spool.counters() == {"damaged": 1}
    assert len(list(path.parent.glob("spool.db.corrupt-*"))) == 1
    add(spool)
    spool.close()
    spool = Spool(path)
    assert spool.notice == "" and len(spool) == 1
    spool.close()


def test_newer_schema_is_left_alone(path):
    Spool(path).close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    db.close()
    with pytest.raises(SpoolError, match="newer edge-kit"):
        Spool(path)
    assert not list(path.parent.glob("*corrupt*"))


def test_full_disk_raises_a_sentence_stores_nothing_and_recovers(path):
    spool = Spool(path)
    kept = add(spool)
    pages = spool._file.query("PRAGMA page_count")[0][0]
    spool._file.query(f"PRAGMA max_page_count = {pages}")
    big = Row(spool.next_id(), bytes(100_000), "")
    with pytest.raises(SpoolError, match="is full; free some space"):
        spool.settle([big], {kept: Outcome.ANSWERED}, {"frames": 1})
    assert spool.pending() == [kept] and spool.counters() == {"offloaded": 1}
    spool._file.query("PRAGMA max_page_count = 100000")
    spool.settle([big], {kept: Outcome.ANSWERED})
    assert spool.pending() == [big.sample]
    spool.close()


def test_spool_in_a_place_that_cannot_be_written_takes_nothing_until_it_opens(tmp_path):
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file" / "spool.db")
    assert "cannot be made" in str(spool.trouble) and spool.trouble.exit_code == 7
    with pytest.raises(SpoolError, match="cannot be made"):
        spool.next_id()
    with pytest.raises(SpoolError, match="cannot be made"):
        spool.settle(counts={"frames": 1})
    assert (len(spool), spool.pending(), spool.is_ours(bytes(8))) == (0, [], False)
    assert not spool.open()
    (tmp_path / "file").unlink()
    assert spool.open() and spool.trouble is None
    add(spool)
    assert len(spool) == 1
    spool.close()


def test_spool_path_that_is_a_folder_gets_a_sentence(tmp_path):
    assert "cannot be written" in str(Spool(tmp_path).trouble)


def test_damage_in_use_is_told_from_other_errors_and_the_next_open_puts_the_file_aside(path):
    spool = Spool(path)
    sample = add(spool)
    spoil(path)
    with pytest.raises(SpoolDamagedError) as caught:
        spool.get(sample)
    spool.discard(caught.value)
    assert len(spool) == 0 and spool.trouble is caught.value
    assert spool.open() and "put aside as spool.db.corrupt-" in spool.notice
    add(spool)
    spool.close()


def test_damage_found_while_reading_the_samples_is_put_aside_by_the_next_open(path, monkeypatch):
    Spool(path).close()

    def damaged(_spool):
        raise SpoolDamagedError("its samples cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(Spool, "_load", damaged)
        spool = Spool(path)
    assert isinstance(spool.trouble, SpoolDamagedError) and path.exists()
    assert spool.open() and len(list(path.parent.glob("*.corrupt-*"))) == 1
    spool.close()


def test_damaged_file_that_cannot_be_put_aside_stays_and_is_tried_again(path, monkeypatch):
    Spool(path).close()
    path.write_bytes(b"garbage" * 1000)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError(30, "Read-only")))
        spool = Spool(path)
        assert "cannot be put aside: Read-only" in str(spool.trouble)
        assert not spool.open() and path.read_bytes().startswith(b"garbage")
    assert spool.open() and len(list(path.parent.glob("*.corrupt-*"))) == 1
    spool.close()


def test_damaged_file_is_put_aside_once_however_often_a_new_one_fails_to_open(path, monkeypatch):
    clock = Clock()
    spool = Spool(path, clock=clock)
    sample = add(spool)
    spoil(path)
    with pytest.raises(SpoolDamagedError) as caught:
        spool.get(sample)
    damaged = path.read_bytes()
    spool.discard(caught.value)

    def full(file):
        path.touch()
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(SpoolFile, "_open", full)
        for _ in range(3):
            clock.now += 5
            assert not spool.open() and spool.notice == ""
    assert spool.open() and spool.counters() == {"damaged": 1}
    (aside,) = path.parent.glob("*.corrupt-*")
    assert aside.read_bytes() == damaged and aside.name in spool.notice
    spool.close()


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"")])
def test_log_whose_file_is_missing_or_empty_is_put_aside(path, damage):
    log = path.with_name("spool.db-wal")
    spool = Spool(path)
    add(spool)
    logged = log.read_bytes()
    spool.close()
    damage(path)
    log.write_bytes(logged)
    spool = Spool(path)
    (aside,) = path.parent.glob("*.corrupt-*-wal")
    assert aside.read_bytes() == logged and "put aside" in spool.notice
    spool.close()


_VICTIM = """
import sys
from pathlib import Path
from edge_kit.delivery.spool import Outcome, Row, Spool
spool = Spool(Path(sys.argv[1]))
held = []
while True:
    sample = spool.next_id()
    ends = {held.pop(0): Outcome.ANSWERED} if len(held) > 20 else {}
    spool.settle([Row(sample, bytes(300), "p")], ends)
    held.append(sample)
    print(sample.hex(), *(s.hex() for s in ends), flush=True)
"""


def test_kill_9_loses_nothing_that_was_reported_and_counts_exactly(path):
    reported: dict[str, bool] = {}
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", _VICTIM, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        for _line in range(150):
            new, *done = child.stdout.readline().split()
            assert new not in reported, "an id was used twice"
            reported[new] = False
            for sample in done:
                reported[sample] = True
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split("\n")[:-1]
        for line in rest:
            new, *done = line.split()
            assert new not in reported
            reported[new] = False
            for sample in done:
                reported[sample] = True
        child.wait()
        child.stdout.close()
    spool = Spool(path)
    pending = {s.hex() for s in spool.pending()}
    assert spool.notice == ""
    open_ones = {s for s, done in reported.items() if not done}
    counters = spool.counters()
    # The last line before a kill may have been cut off: at most one sample and one answer each.
    assert len(open_ones - pending) <= 3 and len(pending - open_ones) <= 3
    assert counters["offloaded"] - counters["answered"] == len(pending)
    assert 0 <= counters["offloaded"] - len(reported) <= 3
    spool.close()
