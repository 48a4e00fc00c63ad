"""Know whether the system clock was set, on boards that have no battery for one.

A board without a real-time clock starts in the past. A certificate checked by such a clock is
judged wrongly: a good one is not valid yet, and one that has expired since is accepted. So whoever
checks certificates waits here first.

systemd-timesyncd writes a file once it has reached a time server in this boot
(systemd-timesyncd(8)). That is the main sign, since the hardened unit may not ask the kernel
(``ProtectClock``). Where the kernel may be asked, its answer counts too: that covers chrony and
ntpd. Where neither can tell, a clock that shows a plausible year is accepted after two minutes,
with a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from edge_kit.host.board import clock_synchronised

__all__ = ["CLOCK_FLOOR", "SYNCHRONIZED", "ClockWait"]

SYNCHRONIZED = Path("/run/systemd/timesync/synchronized")
# A clock that shows an earlier time was never set (2025-01-01).
CLOCK_FLOOR = 1_735_689_600
# By then timesyncd runs, where it runs at all.
GRACE_S = 120.0
REMIND_S = 3600.0


class ClockWait:
    """Wait until the clock is set.

    Args:
        synchronized: The file that appears when the clock was set.
        kernel: Asks the kernel; None when it does not tell.
        wall: Unix time, seconds.
        monotonic: Monotonic clock, seconds.

    Attributes:
        over: The clock can be trusted, now and for the rest of this run.
        waited_s: Seconds from the first look to that, or to the last look.
    """

    def __init__(
        self,
        *,
        synchronized: Path = SYNCHRONIZED,
        kernel: Callable[[], bool | None] = clock_synchronised,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.over = False
        self.waited_s = 0.0
        self._synchronized = synchronized
        self._kernel = kernel
        self._wall = wall
        self._monotonic = monotonic
        self._began: float | None = None
        self._said_at: float | None = None

    def look(self) -> str:
        """Look once; return a message when there is something to log, else an empty text."""
        if self.over:
            return ""
        now = self._monotonic()
        self._began = now if self._began is None else self._began
        self.waited_s = now - self._began
        if self._synchronized.exists() or self._kernel() is True:
            self.over = True
            return "" if self._said_at is None else f"the clock is set: {self._date()}"
        alone = not self._synchronized.parent.exists() and self.waited_s >= GRACE_S
        if alone and self._wall() >= CLOCK_FLOOR:
            self.over = True
            return (
                "systemd-timesyncd does not run and nothing else says whether the clock is right; "
                f"it shows {self._date()}, which is taken as right from now on"
            )
        if self._said_at is not None and now - self._said_at < REMIND_S:
            return ""
        first, self._said_at = self._said_at is None, now
        if first:
            return (
                f"waiting until the clock is set (it shows {self._date()}) before certificates are "
                "judged"
            )
        return f"the clock is still not set (it shows {self._date()}): {self.hint()}"

    def hint(self) -> str:
        """Return what a person can do."""
        if self._synchronized.parent.exists():
            return "systemd-timesyncd has reached no time server; name one that this network has"
        return "systemd-timesyncd does not run; start it, or set wait_for_clock = false"

    def _date(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self._wall()))
