"""The state of the board around one measurement, and what spoils it."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import TracebackType
from typing import Any, Self

from edge_kit.bench.conditions.state import BoardState, busy_seconds, read_governor, read_state
from edge_kit.bench.conditions.throttling import Throttling

__all__ = ["BoardMonitor", "Conditions"]

INTERVAL_S = 1.0
# Other programs that together take more than this share of all cores disturb a measurement.
MOST_OTHER_LOAD = 0.1


@dataclass(frozen=True)
class Conditions:
    """What the board went through.

    Attributes:
        before: Just before.
        during: Looks during it, one a second; at least one.
        after: Just after.
        governor: What chooses the clock.
        other_load: Cores that other programs kept busy, on average; None where unknown.
        cores: Cores of the machine.
        wall_s: How long it took.
        look_ms: CPU time of one look in this process, mean, milliseconds; None where not measured.
    """

    before: BoardState
    during: Sequence[BoardState]
    after: BoardState
    governor: str
    other_load: float | None
    cores: int
    wall_s: float
    look_ms: float | None = None

    @property
    def throttled(self) -> tuple[str, ...]:
        """Why this measurement shows a slower board than there is; empty when it does not."""
        states = (self.before, *self.during, self.after)
        bits = [s.throttling for s in states if s.throttling is not None]
        found = {name for b in bits for name in b.now}
        if bits:
            # Between two looks the firmware may have throttled and stopped: the other bits tell.
            found |= set(bits[-1].since_boot) - set(bits[0].since_boot)
        if any(s.cooling for s in states):
            found.add("clock held down by the kernel because of heat")
        counts = [s.throttle_count for s in states if s.throttle_count is not None]
        if counts and counts[-1] > counts[0]:
            found.add("throttled")
        return tuple(sorted(found))

    @property
    def disturbed(self) -> bool:
        """Other programs took so much of the machine that the figures are theirs too."""
        return self.other_load is not None and self.other_load > MOST_OTHER_LOAD * self.cores

    @property
    def marks(self) -> tuple[str, ...]:
        """Return sentences for people about what spoils this measurement."""
        marks = [f"throttled: {', '.join(self.throttled)}"] if self.throttled else []
        if self.disturbed:
            marks.append(f"disturbed: other programs kept {self.other_load:.2f} cores busy")
        return tuple(marks)

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        states = (self.before, *self.during, self.after)
        heat = [s.temperature for s in states if s.temperature is not None]
        clocks = [s.clock_mhz for s in self.during if s.clock_mhz is not None]
        bits = [s.throttling for s in self.during if s.throttling is not None]
        seen = Throttling(reduce(or_, (b.bits for b in bits))) if bits else None
        return {
            "before": self.before.to_json(),
            "during": {
                "looks": len(self.during),
                "temperature_max_c": max(heat, default=None),
                "clock_min_mhz": min(clocks, default=None),
                "clock_max_mhz": max(clocks, default=None),
                "throttled": None if seen is None else f"{seen.bits:#x}",
                "throttled_now": [] if seen is None else list(seen.now),
                "temperatures_c": [s.temperature for s in self.during] if heat else [],
                "clocks_mhz": [s.clock_mhz for s in self.during] if clocks else [],
            },
            "after": self.after.to_json(),
            "governor": self.governor,
            "other_load": None if self.other_load is None else round(self.other_load, 3),
            "cores": self.cores,
            "wall_s": round(self.wall_s, 3),
            "look_ms": None if self.look_ms is None else round(self.look_ms, 3),
            "throttled": list(self.throttled),
            "disturbed": self.disturbed,
            "marks": list(self.marks),
        }


class BoardMonitor:
    """Look at the board before, during and after what its ``with`` block does.

    Children that end inside count as ours; what else keeps cores busy is other load.

    Args:
        look: Reads the state; injected by tests.
        busy: Reads the busy seconds of all cores.
        interval_s: Between two looks.
    """

    def __init__(
        self,
        look: Callable[[], BoardState] = read_state,
        busy: Callable[[], float | None] = busy_seconds,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._look = look
        self._busy = busy
        self._interval_s = interval_s
        self._during: list[BoardState] = []
        self._looked_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="board state", daemon=True)
        self.conditions: Conditions | None = None

    def __enter__(self) -> Self:
        self._before = self._look()
        self._began = time.perf_counter(), self._busy(), _our_seconds()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        at, busy, ours = self._began
        wall = time.perf_counter() - at
        now = self._busy()
        other = None
        if busy is not None and now is not None and wall > 0:
            other = max(0.0, (now - busy) - (_our_seconds() - ours)) / wall
        self.conditions = Conditions(
            before=self._before,
            during=tuple(self._during),
            after=self._look(),
            governor=read_governor(),
            other_load=other,
            cores=os.cpu_count() or 1,
            wall_s=wall,
            look_ms=self._looked_s / len(self._during) * 1e3 if self._during else None,
        )

    def _keep_looking(self) -> None:
        while True:
            began = time.thread_time()
            self._during.append(self._look())
            self._looked_s += time.thread_time() - began
            if self._ended.wait(self._interval_s):
                return


def _our_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
