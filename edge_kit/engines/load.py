"""Load one model file of a bundle into the engine that it is for."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from edge_kit.bundle import Bundle
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.engine import Engine
from edge_kit.engines.onnx import OnnxEngine
from edge_kit.engines.tflite import INTERPRETERS, TfliteEngine
from edge_kit.errors import EngineError, MissingExtraError

__all__ = ["ENGINES", "PACKAGES", "load_engine", "missing_extra"]

ENGINES: dict[str, Callable[[Path, EngineFile, int], Engine]] = {
    "onnx": OnnxEngine,
    "tflite": TfliteEngine,
}
# What people install for an engine, and what Python then imports.
PACKAGES = {"onnx": "onnxruntime", "tflite": "tflite-runtime or ai-edge-litert"}
_MODULES = {"onnx": ("onnxruntime",), "tflite": INTERPRETERS}


def missing_extra(engine: str) -> MissingExtraError | None:
    """Return the error for an engine whose packages are not installed; imports nothing."""
    modules = [m.partition(".")[0] for m in _MODULES.get(engine, ())]
    if not modules or any(importlib.util.find_spec(m) is not None for m in modules):
        return None
    return MissingExtraError(PACKAGES[engine], engine, f"the engine {engine!r}")


def load_engine(bundle: Bundle, file: EngineFile, threads: int) -> Engine:
    """Load `file` in this process.

    Raises:
        MissingExtraError: The runtime is not installed.
        EngineError: The engine is unknown, or the file cannot be loaded.
    """
    if file.engine not in ENGINES:
        raise EngineError(
            f"{file.path} is for the engine {file.engine!r}; known are {sorted(ENGINES)}",
            "update edge-kit",
        )
    if threads < 1:
        raise EngineError(f"an engine needs at least one thread, not {threads}")
    return ENGINES[file.engine](bundle.path(file), file, threads)
