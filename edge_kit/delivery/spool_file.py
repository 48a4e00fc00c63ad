"""The SQLite file under a spool: lock it, open it, put a damaged one aside, explain what fails."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from edge_kit.errors import SpoolDamagedError, SpoolError, SpoolTakenError

__all__ = ["SpoolFile"]

SCHEMA = 1
_MALFORMED = "the check of its pages failed"

_TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS sample (
  seq INTEGER PRIMARY KEY,
  payload BLOB NOT NULL,
  stored_at REAL NOT NULL,
  provisional TEXT NOT NULL
);
"""


class SpoolFile:
    """A locked and opened file with the spool's tables.

    Args:
        path: Where; made with its directories when missing.
        sync: SQLite's ``synchronous`` level, ``full`` or ``normal``.
        clock: Wall clock, for the name of a damaged file.
        put_aside: Told that name once a damaged file has it, whether a new one opens or not.
        damaged: The file is known to be damaged, so that it is put aside in any case.

    Raises:
        SpoolTakenError: Another process holds it, or a newer edge-kit wrote it.
        SpoolError: It cannot be opened or written, or a damaged one cannot be put aside.
    """

    def __init__(
        self,
        path: Path,
        sync: str,
        clock: Callable[[], float],
        put_aside: Callable[[str], None],
        *,
        damaged: bool = False,
    ) -> None:
        self.path = path
        self._sync = sync
        self._lock = _hold_lock(path)
        try:
            with self._translated("open"):
                if damaged or _is_orphaned(path) or not self._opens():
                    put_aside(_put_aside(path, clock))
                    self._db = self._open()
        except BaseException:
            self._lock.close()
            raise

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement outside `transaction`, which commits by itself.

        Raises:
            SpoolError: The file cannot be read or written.
        """
        with self._translated("use"):
            return self._db.execute(sql, values).fetchall()

    def set_durably(self, key: str, value: Any) -> None:
        """Store a value of ``meta`` that must survive a power cut whatever the level.

        Raises:
            SpoolError: The file cannot be written.
        """
        self.query("PRAGMA synchronous = full")
        self.query("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        self.query(f"PRAGMA synchronous = {self._sync}")

    def close(self) -> None:
        """Write the log back into the file, shrink it, and let the lock go."""
        with contextlib.suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()
        self._lock.close()

    def _opens(self) -> bool:
        """Open the file, unless it is damaged."""
        try:
            self._db = self._open()
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            return False
        return True

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=10, isolation_level=None, check_same_thread=False)
        try:
            # Small pages, since a commit logs whole ones; as many of them as make 4 MiB of log.
            db.execute("PRAGMA page_size = 1024")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA wal_autocheckpoint = 4000")
            db.execute(f"PRAGMA synchronous = {self._sync}")
            db.execute("PRAGMA journal_size_limit = 4194304")
            db.execute("PRAGMA temp_store = MEMORY")
            db.executescript(_TABLES)
            _check_schema(db, self.path)
            # Writes even where nothing changes, so that a disk that cannot be written shows now.
            db.execute("INSERT OR REPLACE INTO meta VALUES ('schema', ?)", (SCHEMA,))
            if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError(_MALFORMED)
        except BaseException:
            db.close()
            raise
        return db

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what happens inside, or nothing of it.

        Raises:
            SpoolError: The file cannot be written.
        """
        with self._translated("write"):
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(error, doing, self.path) from None


def _is_orphaned(path: Path) -> bool:
    """Tell whether there is a log without a file; SQLite would delete it, and all that it holds."""
    log = path.with_name(path.name + "-wal")
    size, of_log = (p.stat().st_size if p.exists() else 0 for p in (path, log))
    return size == 0 < of_log


def _put_aside(path: Path, clock: Callable[[], float]) -> str:
    """Rename file and log, which may hold samples too, and return the file's new name."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(clock()))
    aside = f"{path.name}.corrupt-{stamp}"
    try:
        path.with_name(path.name + "-shm").unlink(missing_ok=True)
        for end in ("-wal", ""):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + end).replace(path.with_name(aside + end))
    except OSError as error:
        raise SpoolError(
            f"the damaged spool {path} cannot be put aside: {error.strerror}",
            "check the permissions of its folder",
        ) from None
    return aside


def _hold_lock(path: Path) -> IO[bytes]:
    """Take the lock file beside the spool; the kernel lets it go when the process ends."""
    lock = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("ab")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _full(path) from None
        raise SpoolError(
            f"the spool {path} cannot be made: {error.strerror}",
            "choose a place that this user can write, with --spool",
        ) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise SpoolTakenError(
            f"another edge-kit uses the spool {path}",
            "stop that one, or give this one its own --spool and --device-id",
        ) from None
    return file


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    row = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()
    if row is not None and row[0] > SCHEMA:
        raise SpoolTakenError(
            f"the spool {path} was written by a newer edge-kit", "update edge-kit on this device"
        )


def _full(path: Path) -> SpoolError:
    return SpoolError(f"the disk under the spool {path} is full", "free some space")


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or str(error) == _MALFORMED


def _translate(error: sqlite3.Error, doing: str, path: Path) -> SpoolError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return _full(path)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
        return SpoolError(
            f"the spool {path} cannot be written: {error}",
            "check its permissions, or choose another place with --spool",
        )
    if isinstance(error, sqlite3.DatabaseError) and _is_damage(error):
        return SpoolDamagedError(f"the spool {path} is damaged: {error}", "it is put aside")
    return SpoolError(f"cannot {doing} the spool {path}: {error}", "check the disk")
