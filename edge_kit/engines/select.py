"""Choose the engine that works and is fastest on this board."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from edge_kit.bundle import Bundle
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.end import EndModel
from edge_kit.engines.engine import Engine
from edge_kit.engines.load import load_engine, missing_extra
from edge_kit.engines.probe import ProbeResult, probe
from edge_kit.engines.trials import TrialCache
from edge_kit.errors import EngineError
from edge_kit.host.board import default_threads

__all__ = ["AUTO", "Trial", "choose_end_file", "open_end_model", "open_tail"]

AUTO = "auto"

_LOG = logging.getLogger(__name__)

Trial = Callable[[Bundle, EngineFile, int], ProbeResult]


def open_end_model(
    bundle: Bundle,
    engine: str = AUTO,
    threads: int | None = None,
    *,
    trial: Trial = probe,
    cache: TrialCache | None = None,
) -> EndModel:
    """Load the end model of a bundle.

    Each candidate is tried in a child process first, once: results are cached.

    Args:
        bundle: An opened bundle.
        engine: ``onnx``, ``tflite``, or ``auto`` for the faster one that works here.
        threads: Of the engine; by default the cores of this process, at most 4.
        trial: Tries a file; injected by tests.
        cache: Where trials are kept; the user's cache directory by default.

    Raises:
        BundleError: No end model suits this architecture.
        MissingExtraError: The engine asked for is not installed.
        EngineError: None of the candidates works; every reason is named.
    """
    threads = threads if threads is not None else default_threads()
    file = choose_end_file(bundle, engine, threads, trial=trial, cache=cache or TrialCache())
    return EndModel(load_engine(bundle, file, threads), file)


def open_tail(bundle: Bundle, threads: int | None = None) -> Engine:
    """Load the cloud half of the bundle's split; for workers.

    Raises:
        BundleError: The bundle holds none.
        MissingExtraError: onnxruntime is not installed.
        EngineError: It cannot be loaded.
    """
    threads = threads if threads is not None else default_threads()
    return load_engine(bundle, bundle.tail_file(), threads)


def choose_end_file(
    bundle: Bundle, engine: str, threads: int, *, trial: Trial, cache: TrialCache
) -> EngineFile:
    """Return the fastest candidate that works; arguments and errors as `open_end_model`."""
    candidates = _candidates(bundle, engine)
    results = {f.path: _try(bundle, f, threads, trial, cache) for f in candidates}
    working = [f for f in candidates if results[f.path].ok]
    if not working:
        reasons = "; ".join(f"{f.path}: {results[f.path].error}" for f in candidates)
        raise EngineError(f"no end model of {bundle.root} runs on this board: {reasons}")
    best = min(working, key=lambda f: results[f.path].seconds_best)
    for file in candidates:
        result = results[file.path]
        text = f"{result.seconds_best * 1e3:.2f} ms" if result.ok else result.error
        _LOG.info("end model %s (%s, %d threads): %s", file.path, file.engine, threads, text)
    return best


def _candidates(bundle: Bundle, engine: str) -> Sequence[EngineFile]:
    files = bundle.end_files()
    if engine == AUTO:
        return files
    chosen = [f for f in files if f.engine == engine]
    if not chosen:
        have = ", ".join(sorted({f.engine for f in files}))
        raise EngineError(
            f"{bundle.root} has no end model for the engine {engine!r}", f"it has: {have}"
        )
    if missing := missing_extra(engine):
        raise missing
    return chosen


def _try(
    bundle: Bundle, file: EngineFile, threads: int, trial: Trial, cache: TrialCache
) -> ProbeResult:
    if missing := missing_extra(file.engine):
        return ProbeResult(False, error=str(missing))
    result = cache.get(file, threads)
    if result is None:
        result = trial(bundle, file, threads)
        cache.put(file, threads, result)
    return result
