"""Time by operator, where an engine tells it."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_kit.bench.measure.measurement import Layer
from edge_kit.bundle import Bundle
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.onnx import OnnxEngine
from edge_kit.errors import EngineError

__all__ = ["layers_of_trace", "profile"]

CALLS = 30


def profile(bundle: Bundle, file: EngineFile, threads: int) -> tuple[Layer, ...] | None:
    """Run a file with the engine's profiler on; None where the engine has none.

    The profiler slows the model down, so the times here are shares, not latencies.

    Raises:
        EngineError: The engine fails, or its trace cannot be read.
    """
    if file.engine != "onnx":  # the Python interpreters of TFLite and LiteRT offer no profiler
        return None
    with tempfile.TemporaryDirectory(prefix="edge-kit-profile-") as folder:
        engine = OnnxEngine(bundle.path(file), file, threads, profile=Path(folder) / "trace")
        batch = {
            name: np.zeros((1, *spec.shape), spec.dtype) for name, spec in engine.inputs.items()
        }
        for _ in range(CALLS):
            engine.run(batch)
        trace = engine.end_profile()
        engine.close()
        try:
            return layers_of_trace(json.loads(trace.read_text(encoding="utf-8")), CALLS)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise EngineError(f"the profile of onnxruntime cannot be read ({error!r})") from None


def layers_of_trace(events: Sequence[Mapping[str, Any]], calls: int) -> tuple[Layer, ...]:
    """Add up the kernel times of a trace of onnxruntime, slowest operator first.

    Args:
        events: In the format of Chrome's trace viewer; durations are microseconds.
        calls: Of the model, at least 1.

    Raises:
        KeyError, TypeError, ValueError: It is not such a trace.
    """
    total: dict[tuple[str, str, str], float] = defaultdict(float)
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            operator = str(event["args"]["op_name"])
            output = _shape(event["args"].get("output_type_shape"))
            total[name.removesuffix("_kernel_time"), operator, output] += float(event["dur"])
    whole = sum(total.values()) or 1.0
    return tuple(
        Layer(*of, round(us / calls / 1e3, 5), round(us / whole, 5))
        for of, us in sorted(total.items(), key=lambda item: -item[1])
    )


def _shape(outputs: Sequence[Mapping[str, Sequence[int]]] | None) -> str:
    """Return the first output of a node, such as ``int8 1 x 10``."""
    for output in outputs or ():
        for kind, shape in output.items():
            return f"{kind} {' x '.join(map(str, shape))}".strip()
    return ""
