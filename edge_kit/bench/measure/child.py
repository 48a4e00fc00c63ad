"""Measure one configuration, as a process of its own: ``python -m edge_kit.bench.measure.child``.

Its peak memory is that of this configuration alone, and a wheel that dies takes nobody with it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from edge_kit.bench.measure.labelled import classify
from edge_kit.bench.measure.latency import Latency, TimedEngine, clock_cost_us, run_calls
from edge_kit.bench.measure.measurement import Configuration, Measurement, Memory
from edge_kit.bench.measure.pipeline import run_pipeline
from edge_kit.bench.measure.profile import profile
from edge_kit.bench.measure.score import Score
from edge_kit.bench.measure.task import Task
from edge_kit.bundle import Bundle
from edge_kit.bundle.selftest import sample_pixels
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.end import EndModel, ImageModel
from edge_kit.engines.load import load_engine
from edge_kit.engines.selftest import self_test
from edge_kit.engines.tflite import INTERPRETERS
from edge_kit.errors import EngineError
from edge_kit.host.board import read_sizes
from edge_kit.host.child_process import answer_parent
from edge_kit.records import from_json, to_json

__all__ = ["measure"]

_STATUS = Path("/proc/self/status")
_MODULES = {"onnx": ("onnxruntime",), "tflite": INTERPRETERS}


def measure(task: Task) -> Measurement:
    """Measure a model file in this process; speed first, so that photos cost no memory yet.

    Raises:
        EdgeKitError: It cannot be loaded or run, or the photos cannot be used.
    """
    bundle, threads, effort = Bundle.open(task.bundle, split=task.split), task.threads, task.effort
    file = bundle.model_file(task.file)
    baseline = read_sizes(_STATUS).get("VmRSS", 0)
    began = time.perf_counter()
    runtime = _import(file.engine)
    imported = time.perf_counter()
    engine = TimedEngine(load_engine(bundle, file, threads))
    model = (EndModel if file.role == "end" else ImageModel)(engine, file)
    loaded = time.perf_counter()
    frames = sample_pixels(bundle)

    def call(index: int) -> object:
        return model.classify(frames[index % len(frames)])

    first = run_calls(engine, call, 1)
    warmup = run_calls(engine, call, effort.warmup, effort.max_secs) if effort.warmup else []
    calls = run_calls(engine, call, effort.runs, effort.max_secs)
    peak = read_sizes(_STATUS).get("VmHWM", 0)
    found = Measurement(
        Configuration.of(file, threads),
        runtime=runtime,
        import_ms=round((imported - began) * 1e3, 3),
        init_ms=round((loaded - imported) * 1e3, 3),
        first_inference_ms=round(first[0] * 1e3, 3),
        warmup=Latency.of(warmup) if warmup else None,
        inference=Latency.of(calls),
        calls_ms=tuple(round(s * 1e3, 4) for s in calls),
        memory=Memory(baseline, peak) if baseline and peak else None,
        clock_us=round(clock_cost_us(), 3),
    )
    if isinstance(model, EndModel):
        agreed = self_test(bundle, model)
        pipeline = run_pipeline(bundle, model, effort.photos, effort.frames, effort.max_secs)
        alike = Score.of(agreed.agree, agreed.total) if agreed else None
        found = replace(found, self_test=alike, pipeline=pipeline)
    if effort.top1:
        found = classify(found, bundle, model, engine, effort.photos, effort.limit)
    engine.close()
    return _profiled(found, bundle, file, threads) if effort.profile else found


def _profiled(found: Measurement, bundle: Bundle, file: EngineFile, threads: int) -> Measurement:
    """Add the time of each operator, or why there is none: the rest holds without it."""
    try:
        layers = profile(bundle, file, threads)
        why = "" if layers is not None else f"{found.runtime} tells Python no times of operators"
    except (EngineError, OSError) as error:
        layers, why = None, f"no profile of {file.path}: {error}"
    skipped = (*found.skipped, why) if why else found.skipped
    return replace(found, layers=layers, skipped=skipped)


def _import(engine: str) -> str:
    """Import the package of an engine; return its name and version, empty when it has none.

    What is wrong with a package that cannot be imported, loading the model will say.
    """
    for module in _MODULES.get(engine, ()):
        try:
            importlib.import_module(module)
        except Exception:
            continue
        package = module.partition(".")[0].replace("_", "-")
        try:
            return f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            return package
    return ""


def _main(task: str) -> int:
    """Be the child: measure one configuration."""
    return answer_parent(lambda: to_json(measure(from_json(Task, json.loads(task)))))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
