"""Which engines work here, and whether a bundle's models run on them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from edge_kit.bundle import Bundle, machine_arch
from edge_kit.bundle.labelled_photos import read_reference
from edge_kit.doctor.check import Check
from edge_kit.engines.load import PACKAGES
from edge_kit.engines.probe import probe
from edge_kit.engines.select import Trial
from edge_kit.errors import BundleError
from edge_kit.host.board import default_threads
from edge_kit.host.child_process import ChildError, ask_child

__all__ = ["check_bundle", "check_engines"]

_IMPORT_TIMEOUT_S = 60.0
_MODULES = {
    "onnx": (("onnxruntime", "onnxruntime"),),
    "tflite": (
        ("tflite_runtime.interpreter", "tflite-runtime"),
        ("ai_edge_litert.interpreter", "ai-edge-litert"),
    ),
}


def check_engines(
    run: Callable[[str], str] | None = None,
) -> Iterator[Check]:
    """Import each engine in a process of its own.

    Args:
        run: Returns why a module cannot be imported, empty when it can; injected by tests.
    """
    run = run or _import_problem
    found = {engine: _engine(engine, run) for engine in _MODULES}
    none = not any(c.ok for c in found.values())
    for engine, check in found.items():
        # One engine is enough; the other's absence matters only when there is none at all.
        ok = False if none else check.ok
        hint = check.hint or f"pip install 'edge-kit[{engine}]'"
        yield Check(check.name, ok, check.detail, "" if check.ok else hint)


def _engine(engine: str, run: Callable[[str], str]) -> Check:
    problems = []
    for module, package in _MODULES[engine]:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            continue
        problem = run(module)
        if not problem:
            return Check(f"engine {engine}", True, f"{package} {_version(package)}")
        problems.append(f"{package} {_version(package)}: {problem}")
    if problems:
        hint = "install a build for this CPU and this Python; tflite-runtime needs numpy below 2"
        return Check(f"engine {engine}", None, "; ".join(problems), hint)
    missing = f"{PACKAGES[engine]} is not installed"
    if engine == "onnx" and machine_arch() == "armv7l":
        missing += "; it has no wheel for a 32-bit system, which gets tflite-runtime only"
        hint = "pip install 'edge-kit[tflite]', and a bundle with an end model for tflite"
        return Check(f"engine {engine}", None, missing, hint)
    return Check(f"engine {engine}", None, missing)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def _import_problem(module: str) -> str:
    """Import a module in a child; return why it cannot be used, empty when it can."""
    code = f"import {module}; from edge_kit.host.child_process import answer_parent; "
    try:
        ask_child([sys.executable, "-c", code + "answer_parent(str)"], module, _IMPORT_TIMEOUT_S)
    except ChildError as error:
        return error.what
    return ""


def check_bundle(path: Path, split: str | None = None, trial: Trial = probe) -> Iterator[Check]:
    """Open a bundle, checking every hash, and try the split's end models in child processes."""
    try:
        bundle = Bundle.open(path, split=split)
        files, labelled = bundle.end_files(), read_reference(bundle)
    except BundleError as error:
        yield Check("bundle", False, error.what, error.hint)
        return
    manifest = bundle.manifest
    yield Check(
        "bundle",
        True,
        f"{manifest.name}, {len(manifest.classes)} classes, model {manifest.model_hash[:16]}, "
        f"T = {bundle.rule.threshold:g}, "
        f"{labelled.sentence() if labelled else 'no labelled photos'}",
    )
    threads = default_threads()
    results = [(f, trial(bundle, f, threads)) for f in files]
    any_works = any(result.ok for _f, result in results)
    for file, result in results:
        detail = result.error
        if result.ok:
            detail = f"{result.seconds_best * 1e3:.2f} ms a frame with {threads} threads"
            if result.total:
                detail += f", {result.agree} of {result.total} reference photos answered alike"
        yield Check(f"end model {file.path}", result.ok or (None if any_works else False), detail)
