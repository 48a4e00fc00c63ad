"""Gate: tflite-runtime and LiteRT both load and run the file, each in a process of its own.

A process of its own, because the two bring clashing copies of one C++ library, and because a
wheel for another CPU dies on import.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

from exporters.engines.exported import Exported
from exporters.judge.gates import Gate

__all__ = ["RUNTIMES", "tflite_loads"]

RUNTIMES: dict[str, str] = {
    "tflite-runtime": "tflite_runtime.interpreter",
    "LiteRT": "ai_edge_litert.interpreter",
}
TIMEOUT_S = 120

_CHILD = """
import importlib, sys
import numpy as np
module, path = sys.argv[1:]
interpreter = importlib.import_module(module).Interpreter(model_path=path, num_threads=1)
run = interpreter.get_signature_runner()
(name, detail), = run.get_input_details().items()
out = run(**{name: np.zeros(detail["shape"], detail["dtype"])})
assert set(out) == {"features", "logits"}, sorted(out)
"""


def tflite_loads(tflite: Exported, runtimes: dict[str, str] | None = None) -> tuple[Gate, ...]:
    """Load and run a TFLite end model in every runtime that devices use.

    Args:
        tflite: From `export_end_tflite`.
        runtimes: Name for people to module; by default `RUNTIMES`.

    Returns:
        One gate each, measured 1 (runs) or 0; a runtime that this Python lacks is not checked.
    """
    return tuple(_loads(tflite, name, module) for name, module in (runtimes or RUNTIMES).items())


def _loads(tflite: Exported, name: str, module: str) -> Gate:
    title = f"{name} loads the TFLite file"
    if not _installed(module):
        return Gate(title, None, 1.0, None, f"{name} is not installed for this Python: not checked")
    command = [sys.executable, "-W", "ignore", "-c", _CHILD, module, os.fspath(tflite.source)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Gate(title, 0.0, 1.0, False, f"{name} took over {TIMEOUT_S} s to run the file once")
    if done.returncode == 0:
        return Gate(title, 1.0, 1.0, True, f"{name} loads and runs the file")
    lines = done.stderr.strip().splitlines()
    why = lines[-1] if lines and done.returncode > 0 else f"it died with {-done.returncode}"
    return Gate(title, 0.0, 1.0, False, f"{name} cannot run the file: {why}")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
