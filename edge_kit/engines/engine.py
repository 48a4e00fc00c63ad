"""What an engine is, and its in-memory twin for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edge_kit.tensors import TensorSpec

__all__ = ["Engine", "FakeEngine", "Tensors"]

Tensors = Mapping[str, NDArray[Any]]


class Engine(Protocol):
    """A loaded model. Not thread-safe: one thread runs it.

    Attributes:
        name: ``onnx``, ``tflite`` or ``fake``.
        threads: Size of its thread pool.
        inputs: Specs by signature name, batch dimension left out.
        outputs: Likewise. Quantized tensors carry their scale and zero point.
    """

    name: str
    threads: int
    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]

    def run(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Run one batch; inputs and outputs have shape (N, *spec.shape), by name.

        Raises:
            EngineError: The model rejects the input or fails.
        """

    def close(self) -> None:
        """Free the model and its threads."""


class FakeEngine:
    """An engine that calls a function; for unit tests."""

    name = "fake"
    threads = 1

    def __init__(
        self,
        inputs: Mapping[str, TensorSpec],
        outputs: Mapping[str, TensorSpec],
        call: Callable[[Tensors], dict[str, NDArray[Any]]],
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self._call = call
        self.calls = 0

    def run(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Call the function and check the shapes that it returns."""
        self.calls += 1
        out = self._call(tensors)
        n = len(next(iter(tensors.values())))
        for name, spec in self.outputs.items():
            want = (n, *spec.shape)
            if out[name].shape != want or out[name].dtype != np.dtype(spec.dtype):
                raise AssertionError(f"{name}: {out[name].dtype}{out[name].shape} is not {want}")
        return out

    def close(self) -> None:
        """Do nothing."""
