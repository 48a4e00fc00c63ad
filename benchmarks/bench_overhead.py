"""Does ``edge-kit bench`` measure the engine, and nothing but the engine?

One engine is loaded once and called in turn in two ways: as the benchmark does it, through the end
model and the engine that takes the time, and in a bare loop with nothing but the clock around the
call. Who begins changes with each pair, so that neither always finds the warmer caches. Reported
are the medians of both, their ratio (budget: 5 % off), and what the benchmark's own instruments
take per call, measured around an engine that does nothing. On a machine that other programs disturb
the medians are theirs too: there the 10th percentiles, of calls that had their cores, decide.

    python benchmarks/bench_overhead.py --bundle clothing.ekb --engine onnx --json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from edge_kit.bench.conditions.conditions import BoardMonitor
from edge_kit.bench.measure.latency import Latency, TimedEngine, clock_cost_us, run_calls
from edge_kit.bundle import Bundle
from edge_kit.engines.end import EndModel
from edge_kit.engines.load import load_engine
from edge_kit.engines.select import open_end_model
from edge_kit.errors import EdgeKitError
from edge_kit.host.board import default_threads

ASSETS = Path(__file__).parents[1] / "edge_kit" / "demo" / "assets"
BUDGET = 0.05
WARMUP = 20


def measure(bundle: Bundle, engine: str, threads: int, pairs: int) -> dict[str, Any]:
    """Call the engine `pairs` times in each of the two ways."""
    chosen = open_end_model(bundle, engine, threads)
    file = chosen.file
    chosen.close()
    inner = load_engine(bundle, file, threads)
    timed = TimedEngine(inner)
    model = EndModel(timed, file)
    rule = bundle.manifest.preprocessing
    pixels = np.random.default_rng(0).integers(0, 256, (rule.height, rule.width, 3), np.uint8)
    spec = inner.inputs["image"]
    image = np.random.default_rng(0).integers(0, 100, (1, *spec.shape)).astype(spec.dtype)

    def bench() -> float:
        return run_calls(timed, lambda _index: model.infer(pixels), 1)[0]

    def bare() -> float:
        began = time.perf_counter()
        inner.run({"image": image})
        return time.perf_counter() - began

    ways = {"bench": bench, "bare": bare}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(WARMUP):
        bench()
        bare()
    with BoardMonitor() as watch:
        for index in range(pairs):
            order = ("bench", "bare") if index % 2 else ("bare", "bench")
            for name in order:
                times[name].append(ways[name]())
    model.close()
    found = {name: Latency.of(values) for name, values in times.items()}
    p10 = {name: float(np.percentile(values, 10)) for name, values in times.items()}
    conditions = watch.conditions
    assert conditions is not None
    return {
        "engine": inner.name,
        "threads": threads,
        "pairs": pairs,
        "bench_p50_ms": round(found["bench"].p50, 4),
        "bare_p50_ms": round(found["bare"].p50, 4),
        "off": round(found["bench"].p50 / found["bare"].p50 - 1, 4),
        "off_p10": round(p10["bench"] / p10["bare"] - 1, 4),
        "instrument_us": round(clock_cost_us(), 3),
        "budget": BUDGET,
        "disturbed": conditions.disturbed,
    }


def main() -> int:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bundle", type=Path, default=ASSETS / "clothing.ekb")
    parser.add_argument("--engine", choices=["auto", "onnx", "tflite"], default="auto")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        figures = measure(Bundle.open(args.bundle), args.engine, args.threads, args.pairs)
    except EdgeKitError as error:
        print(f"bench_overhead: error: {error}", file=sys.stderr)
        return error.exit_code
    if args.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name:16}{value}")
    return 0 if abs(figures["off_p10" if figures["disturbed"] else "off"]) <= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
