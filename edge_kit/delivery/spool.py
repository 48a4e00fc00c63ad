"""The durable queue of samples that left, or will leave, the device unanswered. One SQLite file.

A row exists from before the first publish until a *result* came (or the sample was given up);
deleting it and counting the outcome are one transaction, so each sample is counted exactly once,
whatever dies in between.

Durability. The file is in WAL mode, so ``kill -9`` loses nothing at either level. The default
``synchronous=FULL`` flushes the log at each commit: a sample that was reported as offloaded
survives a power cut. ``NORMAL`` flushes only at checkpoints: a power cut may take the samples of
the last moments (never the file's integrity), for a fraction of the flushes; choose it where the
SD card matters more than one low-confidence frame.

Few writes. A sample costs one insert and one delete and nothing in between: tries and send times
live in memory, since a restart sends everything again anyway. Callers put many of both into one
`settle`. Rows come and go on the same few pages, so a checkpoint (each 4 MiB of log) writes far
less than was logged, and the log file is reused in place, which spares the file system's journal.
Measured on ext4 with 700-byte messages, one commit a sample: 9 kB written and 5 ms waited with
``FULL``, 5 kB and 0.2 ms with ``NORMAL``; 4 KiB pages would write a third more.

Bounds. Over ``max_bytes`` of messages the oldest unanswered sample gives way; older than
``max_age_s`` it is given up. Either is counted, and its provisional answer is kept.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from edge_kit.delivery.spool_file import SpoolFile
from edge_kit.errors import SpoolDamagedError, SpoolError, SpoolTakenError

__all__ = ["Outcome", "Row", "Spool"]

ID_BLOCK = 1024
# A wall clock before this was never set: the board has no battery for one (2024-01-01).
CLOCK_UNSET_BEFORE = 1_704_067_200.0


class Outcome(StrEnum):
    """How a sample ends, by the name of its counter."""

    ANSWERED = "answered"
    REFUSED = "refused"
    EVICTED = "evicted"
    EXPIRED = "expired"


@dataclass(frozen=True)
class Row:
    """One sample.

    Attributes:
        sample: Its 8-byte id.
        payload: The encoded message.
        provisional: The device's own answer, as whoever added it wrote it.
        age_s: Seconds since it was stored; 0 in what is about to be.
        stored_at: Unix time of that; 0 while no trusted clock has told it.
    """

    sample: bytes
    payload: bytes
    provisional: str
    age_s: float = field(default=0.0, compare=False)
    stored_at: float = field(default=0.0, compare=False)


class Spool:
    """A spool. One thread uses it; one process at a time holds it.

    While its file cannot be opened, it is empty and takes nothing: `settle` and `next_id` raise
    what `trouble` says, until `open` succeeds.

    Args:
        path: The file; made with its directories when missing.
        max_bytes: Bound on the sum of payloads.
        max_age_s: Bound on the age of a sample, seconds.
        sync: ``full`` or ``normal``; see the module.
        dated: The wall clock can be trusted; if not, `clock_was_set` is called once it can.
        clock: Wall clock, seconds; injected by tests.
        monotonic: Monotonic clock, seconds.

    Attributes:
        trouble: Why the file is not open; None while it is.
        notice: A sentence for people when a damaged file was put aside and replaced; else empty.

    Raises:
        SpoolTakenError: Another process holds it, or a newer edge-kit wrote it.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int = 64 << 20,
        max_age_s: float = 24 * 3600.0,
        sync: str = "full",
        dated: bool = True,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._sync = sync
        self._clock = clock
        self._monotonic = monotonic
        self._dated = dated
        self._damaged = False
        self._aside = ""  # the name of a damaged file that awaits its replacement
        self._opened: SpoolFile | None = None
        self.trouble: SpoolError | None = None
        self.notice = ""
        self._forget()
        self.open()
        if isinstance(self.trouble, SpoolTakenError):
            raise self.trouble

    def open(self) -> bool:
        """Open the file and read what it holds; return whether that went well."""
        try:
            self._opened = SpoolFile(
                self.path, self._sync, self._clock, self._put_aside, damaged=self._damaged
            )
            if self._aside:
                self._note_damage(self._opened)
            self._load()
        except SpoolError as error:
            self._damaged = self._damaged or isinstance(error, SpoolDamagedError)
            self._close(error)
            return False
        self.trouble = None
        return True

    def _put_aside(self, name: str) -> None:
        self._damaged, self._aside = False, name

    def _note_damage(self, file: SpoolFile) -> None:
        file.query("INSERT OR REPLACE INTO counter VALUES ('damaged', 1)")
        self.notice = (
            f"the spool {self.path} was damaged: it was put aside as {self._aside} and a new one "
            "started; samples that awaited an answer in it keep their provisional answers"
        )
        self._aside = ""

    def discard(self, error: SpoolDamagedError) -> None:
        """Close a file that turned out to be damaged; the next `open` puts it aside."""
        self._damaged = True
        self._close(error)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, sample: bytes) -> bool:
        return self._seq(sample) in self._index

    @property
    def nbytes(self) -> int:
        """Sum of the payloads, bytes."""
        return self._bytes

    def pending(self) -> list[bytes]:
        """Return the ids of all unanswered samples, oldest first."""
        return [self._id(seq) for seq in self._index]

    def get(self, sample: bytes) -> Row | None:
        """Return an unanswered sample; None when it is not one of ours or is done.

        Raises:
            SpoolError: The file cannot be read.
        """
        if sample not in self:
            return None
        found = self._file.query(
            "SELECT payload, provisional, stored_at FROM sample WHERE seq = ?", (self._seq(sample),)
        )
        if not found:
            return None
        payload, provisional, stored_at = found[0]
        age = self._monotonic() - self._index[int.from_bytes(sample[4:], "little")][1]
        return Row(sample, payload, provisional, age, stored_at)

    def is_ours(self, sample: bytes) -> bool:
        """Tell whether this spool ever gave out the id."""
        seq = self._seq(sample)
        return seq is not None and seq < self._next

    def next_id(self) -> bytes:
        """Return an id that was never used and never will be, even after a crash.

        Four random bytes of this file, then a counter. The file always names a counter beyond
        every id given out, flushed to disk before the first of a block is used.

        Raises:
            SpoolError: The file cannot be written.
        """
        if self._next >= self._reserved:
            self._reserve()
        self._next += 1
        return self._id(self._next - 1)

    def settle(
        self,
        adds: Sequence[Row] = (),
        ends: Mapping[bytes, Outcome] | None = None,
        counts: Mapping[str, int] | None = None,
    ) -> list[Row]:
        """Store new samples, end others and add to counters, all or nothing.

        Args:
            adds: New samples, with ids from `next_id`. Counted as ``offloaded``.
            ends: How samples end, which counts them. Ids that are not pending are ignored.
            counts: Other counters and what to add to them.

        Returns:
            The samples that had to give way to the new ones, counted as ``evicted``.

        Raises:
            SpoolError: Nothing was stored, ended or counted; the caller may try again.
        """
        done = {s: how for s, how in (ends or {}).items() if s in self}
        evicted = self._choose_evicted(sum(len(r.payload) for r in adds), done)
        total = dict(counts or {})
        for how in [*done.values(), *(Outcome.EVICTED for _ in evicted)]:
            total[how.value] = total.get(how.value, 0) + 1
        if adds:
            total["offloaded"] = total.get("offloaded", 0) + len(adds)
        gone = [self._seq(s) for s in done] + [self._seq(r.sample) for r in evicted]
        stored_at = self._clock() if self._dated else 0.0
        with self._file.transaction() as db:
            db.executemany(
                "INSERT INTO sample VALUES (?, ?, ?, ?)",
                [(self._seq(r.sample), r.payload, stored_at, r.provisional) for r in adds],
            )
            db.executemany("DELETE FROM sample WHERE seq = ?", [(seq,) for seq in gone])
            db.executemany(
                "INSERT INTO counter VALUES (?, ?) "
                "ON CONFLICT (name) DO UPDATE SET value = value + excluded.value",
                list(total.items()),
            )
        for row in adds:
            self._remember(row.sample, len(row.payload), self._monotonic(), dated=self._dated)
        for seq in gone:
            if seq is not None:
                self._undated.discard(seq)
                self._bytes -= self._index.pop(seq)[0]
        for name, value in total.items():
            self._counters[name] = self._counters.get(name, 0) + value
        return evicted

    def overdue(self, limit: int = 64) -> list[bytes]:
        """Return up to `limit` samples that are older than the bound, oldest first."""
        horizon = self._monotonic() - self._max_age_s
        found: list[bytes] = []
        for seq, (_size, stored) in self._index.items():
            if stored > horizon or len(found) == limit:
                break
            found.append(self._id(seq))
        return found

    def clock_was_set(self) -> None:
        """Date what was stored while the clock was not set, by the monotonic clock.

        Else a restart would take such samples for as old as the clock was wrong.
        """
        self._dated = True
        if not self._undated:
            return
        now, wall = self._monotonic(), self._clock()
        dates = [(wall - (now - self._index[seq][1]), seq) for seq in self._undated]
        # A disk that fails leaves them undated, and so young after a restart; nothing is lost.
        with contextlib.suppress(SpoolError), self._file.transaction() as db:
            db.executemany("UPDATE sample SET stored_at = ? WHERE seq = ?", dates)
        self._undated.clear()

    def counters(self) -> dict[str, int]:
        """Return all counters since the file was made."""
        return dict(self._counters)

    def close(self) -> None:
        """Write the log back into the file, shrink it, and let the lock go."""
        if self._opened is not None:
            with contextlib.suppress(SpoolError):
                self._opened.set_durably("reserved", self._next)
            self._opened.close()

    def _close(self, error: SpoolError) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
        self.trouble = error
        self._forget()

    @property
    def _file(self) -> SpoolFile:
        if self._opened is None:
            assert self.trouble is not None
            raise self.trouble
        return self._opened

    def _forget(self) -> None:
        # seq -> (payload bytes, monotonic time of storing), oldest first.
        self._index: dict[int, tuple[int, float]] = {}
        self._bytes = 0
        # Samples whose moment of storing the file does not know: the clock was not set.
        self._undated: set[int] = set()
        self._counters: dict[str, int] = {}
        self._prefix = b""
        self._next = self._reserved = 0

    def _choose_evicted(self, incoming: int, done: Mapping[bytes, Outcome]) -> list[Row]:
        """Return the oldest samples, enough of them that `incoming` bytes fit."""
        freed = sum(self._index[seq][0] for s in done if (seq := self._seq(s)) is not None)
        over = self._bytes - freed + incoming - self._max_bytes
        evicted: list[Row] = []
        for seq, (size, _stored) in self._index.items():
            if over <= 0:
                break
            sample = self._id(seq)
            if sample not in done:
                evicted.append(self.get(sample) or Row(sample, b"", ""))
                over -= size
        return evicted

    def _load(self) -> None:
        self._counters = dict(self._pairs("SELECT * FROM counter"))
        now, wall = self._monotonic(), self._clock()
        stored = self._file.query("SELECT seq, length(payload), stored_at FROM sample ORDER BY seq")
        meta = dict(self._pairs("SELECT key, value FROM meta"))
        self._next = int(meta.get("reserved", 1))
        if "prefix" not in meta:
            meta["prefix"], self._next = os.urandom(4), 1
            self._file.set_durably("prefix", meta["prefix"])
            self._file.set_durably("reserved", 1)
        self._prefix = bytes(meta["prefix"])
        self._reserved = self._next
        for seq, size, stored_at in stored:
            # Only here do two wall clocks meet; a board's clock may have been set in between.
            known = stored_at >= CLOCK_UNSET_BEFORE
            age = max(0.0, wall - stored_at) if known else 0.0
            self._remember(self._id(seq), size, now - age, dated=known)
        if self._dated and self._undated:
            self.clock_was_set()

    def _pairs(self, sql: str) -> list[tuple[str, Any]]:
        return [(str(key), value) for key, value in self._file.query(sql)]

    def _reserve(self) -> None:
        end = self._next + ID_BLOCK
        self._file.set_durably("reserved", end)
        self._reserved = end

    def _remember(self, sample: bytes, size: int, stored: float, *, dated: bool) -> None:
        seq = self._seq(sample)
        if seq is None:
            raise ValueError(f"{sample.hex()} is not an id of {self.path}")
        self._index[seq] = (size, stored)
        if not dated:
            self._undated.add(seq)
        self._bytes += size

    def _id(self, seq: int) -> bytes:
        return self._prefix + seq.to_bytes(4, "little")

    def _seq(self, sample: bytes) -> int | None:
        if len(sample) != 8 or sample[:4] != self._prefix:
            return None
        return int.from_bytes(sample[4:], "little")
