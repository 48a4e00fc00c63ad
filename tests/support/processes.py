"""Processes that are not children of the test."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path


def gone(pid: int) -> bool:
    """Wait until a process that is not our child has ended; False after 30 s."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    return False
