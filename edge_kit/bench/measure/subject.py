"""The model that is measured: pixels in, logits out, whichever half or whole it is."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.split import EngineFile
from edge_kit.engines.end import EndModel, EndOutput
from edge_kit.engines.engine import Engine
from edge_kit.engines.image_input import ImageInput
from edge_kit.errors import EngineError
from edge_kit.tensors import TensorSpec, dequantize

__all__ = ["Subject", "WholeModel", "open_subject"]


class Subject(Protocol):
    """What classifies one frame with one call of its engine."""

    def infer(self, pixels: NDArray[np.uint8]) -> EndOutput:
        """Classify uint8 (H, W, 3), RGB, of the model's size."""
        ...


class WholeModel:
    """The whole float model of a bundle, run on the board for comparison.

    Args:
        engine: Loaded from `file`.
        file: Of the role ``full``.

    Raises:
        EngineError: It does not take one float image.
    """

    def __init__(self, engine: Engine, file: EngineFile) -> None:
        self._input = ImageInput(engine, file.path)
        if "logits" not in engine.outputs:
            raise EngineError(f"{file.path} is not a whole model: it has no output 'logits'")
        self._engine = engine
        self._logits: TensorSpec = engine.outputs["logits"]
        self._nothing = np.zeros(0, np.int8)

    def infer(self, pixels: NDArray[np.uint8]) -> EndOutput:
        """Classify one frame; there are no features."""
        out = self._engine.run(self._input.fill(pixels))
        return EndOutput(self._nothing, dequantize(out["logits"][0], self._logits))


def open_subject(engine: Engine, file: EngineFile) -> Subject:
    """Return the model of `file`.

    Raises:
        EngineError: The file does not classify images.
    """
    return EndModel(engine, file) if file.role == "end" else WholeModel(engine, file)
