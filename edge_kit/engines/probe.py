"""Try an engine in a process of its own, so that a wheel that dies takes nobody with it.

A wheel built for another CPU ends in SIGILL, at import or at the first inference; no ``except``
catches that.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_kit.bundle import Bundle
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.end import EndModel
from edge_kit.engines.engine import Engine
from edge_kit.engines.load import PACKAGES, load_engine
from edge_kit.engines.selftest import self_test
from edge_kit.host.child_process import ChildError, answer_parent, ask_child, module_command

__all__ = ["ProbeResult", "probe"]

_CALLS = 20
_TIMEOUT_S = 120.0
# Enough for one undisturbed call; a slow board needs not make them all.
_BUDGET_S = 5.0


@dataclass(frozen=True)
class ProbeResult:
    """What a trial showed.

    Attributes:
        ok: The engine loaded the file and ran it.
        seconds_best: Quickest call at batch 1; 0.0 when not ok.
        error: Why not, as a sentence; empty when ok.
        agree: Reference photos answered as at the export; 0 without a self-test.
        total: Reference photos.
    """

    ok: bool
    seconds_best: float = 0.0
    error: str = ""
    agree: int = 0
    total: int = 0


def probe(
    bundle: Bundle,
    file: EngineFile,
    threads: int,
    *,
    command: Callable[[], Sequence[str]] | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> ProbeResult:
    """Load and run a model file in a child process.

    Args:
        bundle: Where it lies.
        file: Which one.
        threads: Of the engine.
        command: Gives the child's command line; injected by tests.
        timeout_s: When to give up.
    """
    given = [str(bundle.root), bundle.split.name, file.path, str(threads)]
    arguments = command() if command else module_command(__name__, *given)
    try:
        answer = ask_child(arguments, PACKAGES.get(file.engine, file.engine), timeout_s)
    except ChildError as error:
        return ProbeResult(False, error=str(error))
    return ProbeResult(**answer)


def _measure(engine: Engine, calls: int = _CALLS) -> float:
    """Return the seconds of the quickest call on noise, the first one left out.

    Whatever else runs can only slow a call down, and the answer is kept for later starts.
    """
    rng = np.random.default_rng(0)
    batch = {
        name: rng.integers(0, 100, (1, *spec.shape)).astype(spec.dtype)
        for name, spec in engine.inputs.items()
    }
    engine.run(batch)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < calls and (len(times) < 3 or time.perf_counter() - start < _BUDGET_S):
        at = time.perf_counter()
        engine.run(batch)
        times.append(time.perf_counter() - at)
    return min(times)


def _try(bundle: Bundle, file: EngineFile, threads: int) -> ProbeResult:
    """Time a file, and compare its answers with those of the export when it is an end model."""
    engine = load_engine(bundle, file, threads)
    seconds = _measure(engine)
    found = self_test(bundle, EndModel(engine, file)) if file.role == "end" else None
    if found is None:
        return ProbeResult(True, seconds)
    if found.passed:
        return ProbeResult(True, seconds, agree=found.agree, total=found.total)
    return ProbeResult(
        False,
        error=f"{PACKAGES[file.engine]} answers {found.total - found.agree} of {found.total} "
        "reference photos differently than at the export",
        agree=found.agree,
        total=found.total,
    )


def _main(argv: Sequence[str] | None = None) -> int:
    """Be the child: try one file."""
    parser = argparse.ArgumentParser(prog="edge_kit.engines.probe")
    parser.add_argument("bundle", type=Path)
    parser.add_argument("split")
    parser.add_argument("file")
    parser.add_argument("threads", type=int)
    args = parser.parse_args(argv)

    def answer() -> dict[str, Any]:
        bundle = Bundle.open(args.bundle, split=args.split)
        return asdict(_try(bundle, bundle.model_file(args.file), args.threads))

    return answer_parent(answer)


if __name__ == "__main__":
    sys.exit(_main())
