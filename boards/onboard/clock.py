"""Wait for the system clock before certificates are judged. Standard library only.

The same rule as `edge_kit.host.clock`, which runs under a user that may not ask the kernel; this
runs as root, whose word from the kernel covers every time service.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["kernel_says_set", "wait_for_clock"]

SYNCHRONIZED = "run/systemd/timesync/synchronized"
# adjtimex(2): what it returns for a clock that no time service has set.
_TIME_ERROR = 5
# No board that runs this lives in an earlier year (2025-01-01).
FLOOR = 1_735_689_600
GRACE_S = 120.0
EVERY_S = 2.0
REMIND_S = 3600.0


def kernel_says_set() -> bool:
    """Return whether the kernel knows that a time service set the clock."""
    # All zeros ask and change nothing.
    state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))
    return 0 <= state != _TIME_ERROR


def wait_for_clock(
    root: Path,
    report: Callable[[str], object],
    *,
    kernel: Callable[[], bool] = kernel_says_set,
    wall: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Return once the clock can be trusted; where no time service runs, two minutes later.

    Args:
        root: The root directory.
        report: Told that it waits, each hour that it still does, and how it ended.
        kernel: Asks the kernel.
        wall: Unix time, seconds.
        monotonic: Seconds.
        sleep: Waits.
    """
    began = monotonic()
    remind_at = began
    while not ((root / SYNCHRONIZED).exists() or kernel()):
        now = monotonic()
        served = (root / SYNCHRONIZED).parent.exists()
        if not served and now - began >= GRACE_S and wall() >= FLOOR:
            report("no time service runs here: the clock is taken as right")
            return
        if now >= remind_at:
            remind_at = now + REMIND_S
            report("waiting until the clock is set; system.ntp names time servers")
        sleep(EVERY_S)
    if remind_at > began:
        report("the clock is set")
