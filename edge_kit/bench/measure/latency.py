"""How long calls of an engine take, and the engine that takes the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.engines.engine import Engine, FakeEngine, Tensors
from edge_kit.tensors import TensorSpec

__all__ = ["Latency", "TimedEngine", "clock_cost_us", "run_calls"]


@dataclass(frozen=True)
class Latency:
    """A distribution, milliseconds, rounded to 0.1 microseconds.

    Attributes:
        p50: Median; percentiles are interpolated linearly.
        p90: 90th percentile.
        p99: 99th percentile; of fewer than 100 calls it is nearly the slowest.
    """

    count: int
    minimum: float = field(metadata={"key": "min"})
    p50: float
    p90: float
    p99: float
    maximum: float = field(metadata={"key": "max"})
    mean: float
    std: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """Summarize at least one duration, given in seconds."""
        ms = np.asarray(seconds, np.float64) * 1e3
        figures = (ms.min(), *np.percentile(ms, (50, 90, 99)), ms.max(), ms.mean(), ms.std())
        return cls(len(ms), *(round(float(f), 4) for f in figures))


class TimedEngine:
    """An engine that notes how long each call of another took, which is closed with this.

    All figures come through it, those of speed and those of accuracy, so both are of the same code.

    Attributes:
        seconds: One duration a call, oldest first; take them with `take`.
    """

    def __init__(self, engine: Engine) -> None:
        self.name = engine.name
        self.threads = engine.threads
        self.inputs: Mapping[str, TensorSpec] = engine.inputs
        self.outputs: Mapping[str, TensorSpec] = engine.outputs
        self.seconds: list[float] = []
        self._engine = engine

    def run(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Run one batch and note the time; errors as the engine's."""
        began = time.perf_counter()
        out = self._engine.run(tensors)
        self.seconds.append(time.perf_counter() - began)
        return out

    def take(self) -> list[float]:
        """Return the durations since the last time, and forget them."""
        taken, self.seconds = self.seconds, []
        return taken

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()


def run_calls(
    engine: TimedEngine,
    call: Callable[[int], object],
    count: int,
    max_secs: float = float("inf"),
) -> list[float]:
    """Call ``call(0)``, ``call(1)``, … and return how long the engine took in each.

    Args:
        engine: Which `call` runs once.
        call: Runs one frame; told its number.
        count: Calls.
        max_secs: No call begins after so long, but for the first.
    """
    engine.take()
    end = time.perf_counter() + max_secs
    for index in range(count):
        call(index)
        if time.perf_counter() >= end:
            break
    return engine.take()


def clock_cost_us(calls: int = 2000) -> float:
    """Return what `TimedEngine` adds to a call, microseconds: around an engine that does nothing.

    Args:
        calls: In each of five rounds, with and without; the quickest round counts.
    """
    empty = FakeEngine({}, {}, lambda _tensors: {})
    batch: Tensors = {"image": np.zeros((1, 1), np.uint8)}
    best = []
    for run in (TimedEngine(empty).run, empty.run):
        rounds = []
        for _ in range(5):
            began = time.perf_counter()
            for _ in range(calls):
                run(batch)
            rounds.append(time.perf_counter() - began)
        best.append(min(rounds))
    return max(0.0, best[0] - best[1]) / calls * 1e6
