"""One export at a time in a work folder: a lock that names its owner and ends with it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from edge_kit.errors import ExportError

__all__ = ["hold_lock"]

LOCK = "lock"


@contextlib.contextmanager
def hold_lock(work: Path) -> Iterator[None]:
    """Own a work folder; made when missing.

    The kernel holds the lock on an open file and releases it when the process ends, however it
    ends. The file says who the owner is, for people; it stays behind, without a lock.

    Raises:
        ExportError: Another export works there, or the folder cannot be made.
    """
    try:
        work.mkdir(parents=True, exist_ok=True)
        file = (work / LOCK).open("a+", encoding="utf-8")
    except OSError as error:
        raise ExportError(
            f"the work folder {work} cannot be used: {error.strerror}",
            "check permissions and free space, or choose another --out",
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ExportError(
                f"another export works in {work}: {file.read().strip() or 'it just started'}",
                "wait until it ends, stop it, or choose another --out",
            ) from None
        file.truncate(0)
        file.write(_owner())
        file.flush()
        yield


def _owner() -> str:
    started = datetime.now(UTC).isoformat(timespec="seconds")
    command = shlex.join(sys.argv)
    return f"process {os.getpid()} on {socket.gethostname()} since {started} ({command})\n"
