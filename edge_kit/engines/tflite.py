"""TensorFlow Lite: LiteRT where it is installed, else tflite-runtime; one API."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.split import EngineFile
from edge_kit.engines.check import check_batch
from edge_kit.engines.engine import Tensors
from edge_kit.errors import EngineError, MissingExtraError
from edge_kit.tensors import TensorSpec

__all__ = ["INTERPRETERS", "TfliteEngine"]

# In order of preference: LiteRT's int8 kernels are over ten times faster on x86-64. The extra
# installs tflite-runtime for CPython up to 3.11, also on armv7l, where LiteRT has no wheels.
INTERPRETERS = ("ai_edge_litert.interpreter", "tflite_runtime.interpreter")

# A file states scales as float32 and a manifest as decimal text.
_TOLERANCE = 1e-5


class TfliteEngine:
    """A model in a TFLite interpreter. Its files take batches of one; larger ones are looped.

    Args:
        path: The ``.tflite`` file.
        file: What the manifest says of it.
        threads: Size of the thread pool, from 1.

    Raises:
        MissingExtraError: No interpreter is installed.
        EngineError: The file cannot be loaded, or does not have the tensors of the manifest.
    """

    name = "tflite"

    def __init__(self, path: Path, file: EngineFile, threads: int) -> None:
        self.threads = threads
        self.inputs: Mapping[str, TensorSpec] = {s.name: s for s in file.inputs}
        self.outputs: Mapping[str, TensorSpec] = {s.name: s for s in file.outputs}
        interpreter = _interpreter()
        # The runtime raises ValueError, RuntimeError and, when built for another numpy, more.
        try:
            self._interpreter: Any = interpreter(model_path=str(path), num_threads=threads)
            self._interpreter.allocate_tensors()
        except Exception as error:
            raise EngineError(
                f"{interpreter.__module__.partition('.')[0]} cannot load {path} ({error})",
                "update it, or export again for an older one",
            ) from None
        runner = self._runner(path)
        self._in = _indices(runner.get_input_details(), self.inputs, path)
        self._out = _indices(runner.get_output_details(), self.outputs, path)

    def run(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Run a batch, sample by sample.

        Raises:
            EngineError: The input does not fit, or the model fails.
        """
        n = check_batch(tensors, self.inputs)
        if n == 1:
            return self._call(tensors)
        rows = [self._call({k: v[i : i + 1] for k, v in tensors.items()}) for i in range(n)]
        return {name: np.concatenate([row[name] for row in rows]) for name in self.outputs}

    def close(self) -> None:
        """Free the interpreter and its threads."""
        self._interpreter = None

    def _call(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        if self._interpreter is None:
            raise EngineError("this engine is closed")
        try:
            for name, index in self._in.items():
                self._interpreter.set_tensor(index, tensors[name])
            self._interpreter.invoke()
            return {name: self._interpreter.get_tensor(index) for name, index in self._out.items()}
        except Exception as error:  # see __init__
            raise EngineError(f"the model failed ({error})") from None

    def _runner(self, path: Path) -> Any:
        """Return the runner of the signature whose names are the manifest's.

        Only its tensor indices are used: calling it would resize and allocate at every frame.
        """
        signatures = self._interpreter.get_signature_list()
        for key, names in signatures.items():
            if set(names["inputs"]) == set(self.inputs) and set(self.outputs) <= set(
                names["outputs"]
            ):
                return self._interpreter.get_signature_runner(key)
        raise EngineError(
            f"{path} has no signature from {sorted(self.inputs)} to {sorted(self.outputs)} "
            f"(it has {signatures})",
            "export the bundle again",
        )


def _interpreter() -> Any:
    """Import the first interpreter that can be."""
    reasons = []
    for module in INTERPRETERS:
        # A wheel built for another numpy or C library fails with AttributeError, OSError, …
        try:
            return importlib.import_module(module).Interpreter
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                reasons.append(f"{module}: {error}")
        except Exception as error:
            reasons.append(f"{module}: {error}")
    if reasons:
        raise EngineError(
            f"no TFLite interpreter can be imported ({'; '.join(reasons)})",
            "tflite-runtime needs numpy below 2: pip install 'numpy<2'",
        )
    raise MissingExtraError("tflite-runtime or ai-edge-litert", "tflite", "running a TFLite model")


def _indices(
    details: Mapping[str, Mapping[str, Any]], specs: Mapping[str, TensorSpec], path: Path
) -> dict[str, int]:
    """Return tensor indices by name after a check against the manifest."""
    found = {}
    for name, spec in specs.items():
        have = details[name]
        shape, dtype = tuple(int(d) for d in have["shape"]), np.dtype(have["dtype"])
        same = shape == (1, *spec.shape) and dtype == np.dtype(spec.dtype)
        if not (same and _same_numbers(spec, *have["quantization"])):
            scale, zero_point = have["quantization"]
            raise EngineError(
                f"{name} of {path} is {dtype}{list(shape)} with scale {scale:g} and zero point "
                f"{zero_point}, the manifest says {spec.dtype}{[1, *spec.shape]} with "
                f"{spec.scale:g} and {spec.zero_point}",
                "export the bundle again",
            )
        found[name] = int(have["index"])
    return found


def _same_numbers(spec: TensorSpec, scale: float, zero_point: int) -> bool:
    """Return whether the file's quantization is what this side will assume."""
    if not scale:  # a float tensor
        return True
    if spec.name == "image":
        # end.py feeds pixels (uint8) or pixels - 128 (int8) whatever these numbers are: with
        # normalization folded into them they are 1 / std and mean.
        return True
    return abs(scale - spec.scale) <= _TOLERANCE * spec.scale and zero_point == spec.zero_point
