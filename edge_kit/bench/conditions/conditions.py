"""The state of the board around one measurement, and what spoils it."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Self

from edge_kit.bench.conditions.state import (
    BoardState,
    Throttling,
    busy_seconds,
    read_governor,
    read_state,
)

__all__ = ["BoardMonitor", "Conditions", "During"]

INTERVAL_S = 1.0
# Other programs that together take more than this share of all cores disturb a measurement.
MOST_OTHER_LOAD = 0.1


@dataclass(frozen=True)
class During:
    """The looks at the board while it worked, together; empty or None where it does not tell.

    Attributes:
        looks: How many, one a second; at least one.
        temperature_max_c: The looks before and after included.
        throttled: A Raspberry Pi's bits that were set at any look, as `BoardState.throttled`.
        throttled_now: What the lower ones say, in words.
        temperatures_c: One a look, as `clocks_mhz`.
    """

    looks: int = 0
    temperature_max_c: float | None = None
    clock_min_mhz: float | None = None
    clock_max_mhz: float | None = None
    throttled: str | None = None
    throttled_now: tuple[str, ...] = ()
    temperatures_c: tuple[float | None, ...] = ()
    clocks_mhz: tuple[float | None, ...] = ()

    @classmethod
    def of(cls, before: BoardState, looks: Sequence[BoardState], after: BoardState) -> During:
        """Put looks together."""
        around = (before, *looks, after)
        heat = [s.temperature_c for s in around if s.temperature_c is not None]
        clocks = [s.clock_mhz for s in looks if s.clock_mhz is not None]
        bits = [s.throttling.bits for s in looks if s.throttling is not None]
        seen = Throttling(reduce(or_, bits)) if bits else None
        return cls(
            looks=len(looks),
            temperature_max_c=max(heat, default=None),
            clock_min_mhz=min(clocks, default=None),
            clock_max_mhz=max(clocks, default=None),
            throttled=str(seen) if seen else None,
            throttled_now=seen.now if seen else (),
            temperatures_c=tuple(s.temperature_c for s in looks) if heat else (),
            clocks_mhz=tuple(s.clock_mhz for s in looks) if clocks else (),
        )


@dataclass(frozen=True)
class Conditions:
    """What the board went through; without arguments, those of a run that never started.

    Attributes:
        governor: What chooses the clock.
        other_load: Cores that other programs kept busy, on average; None where unknown.
        wall_s: How long it took.
        look_ms: CPU time of one look in this process, mean, milliseconds; None where not measured.
        throttled: Why this measurement shows a slower board than there is; empty when it does not.
        disturbed: Other programs took so much of the machine that the figures are theirs too.
        marks: Sentences for people about what spoils this measurement.
    """

    before: BoardState = field(default_factory=BoardState)
    during: During = field(default_factory=During)
    after: BoardState = field(default_factory=BoardState)
    governor: str = ""
    other_load: float | None = None
    cores: int = 1
    wall_s: float = 0.0
    look_ms: float | None = None
    throttled: tuple[str, ...] = ()
    disturbed: bool = False
    marks: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        states: Sequence[BoardState],
        other_load: float | None,
        cores: int,
        wall_s: float,
        look_ms: float | None = None,
    ) -> Conditions:
        """Judge looks: the one before, those during, at least one, and the one after."""
        before, *looks, after = states
        throttled = _throttled(states)
        disturbed = other_load is not None and other_load > MOST_OTHER_LOAD * cores
        marks = [f"throttled: {', '.join(throttled)}"] if throttled else []
        if disturbed:
            marks.append(f"disturbed: other programs kept {other_load:.2f} cores busy")
        return cls(
            before,
            During.of(before, looks, after),
            after,
            read_governor(),
            None if other_load is None else round(other_load, 3),
            cores,
            round(wall_s, 3),
            None if look_ms is None else round(look_ms, 3),
            throttled,
            disturbed,
            tuple(marks),
        )


def _throttled(states: Sequence[BoardState]) -> tuple[str, ...]:
    found = {name for s in states for name in s.throttled_now}
    bits = [s for s in states if s.throttled is not None]
    if bits:
        # Between two looks the firmware may have throttled and stopped: the other bits tell.
        found |= set(bits[-1].throttled_since_boot) - set(bits[0].throttled_since_boot)
    if any(s.cooling for s in states):
        found.add("clock held down by the kernel because of heat")
    counts = [s.throttle_count for s in states if s.throttle_count is not None]
    if counts and counts[-1] > counts[0]:
        found.add("throttled")
    return tuple(sorted(found))


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
        self._states: list[BoardState] = []
        self._looked_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="board state", daemon=True)
        self.conditions = Conditions()

    def __enter__(self) -> Self:
        self._states.append(self._look())
        self._began = time.perf_counter(), self._busy(), _our_seconds()
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()
        at, busy, ours = self._began
        wall = time.perf_counter() - at
        now = self._busy()
        other = None
        if busy is not None and now is not None and wall > 0:
            other = max(0.0, (now - busy) - (_our_seconds() - ours)) / wall
        looks = len(self._states) - 1
        self._states.append(self._look())
        look_ms = self._looked_s / looks * 1e3 if looks else None
        self.conditions = Conditions.of(self._states, other, os.cpu_count() or 1, wall, look_ms)

    def _keep_looking(self) -> None:
        while True:
            began = time.thread_time()
            self._states.append(self._look())
            self._looked_s += time.thread_time() - began
            if self._ended.wait(self._interval_s):
                return


def _our_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
