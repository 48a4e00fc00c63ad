"""An end model: pixels in, int8 features and logits out, whatever engine runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.split import EngineFile
from edge_kit.engines.engine import Engine
from edge_kit.engines.image_input import ImageInput
from edge_kit.errors import EngineError
from edge_kit.tensors import TensorSpec, dequantize

__all__ = ["EndModel", "EndOutput"]


@dataclass(frozen=True, eq=False)
class EndOutput:
    """What an end model says of one frame.

    Attributes:
        features: Raw values of the engine's own layout, shape and dtype of `feature_spec`.
        logits: float32 (classes,).
    """

    features: NDArray[Any]
    logits: NDArray[np.float32]


class EndModel:
    """Run frames through an engine. Not thread-safe: one thread runs it.

    Args:
        engine: A loaded engine; closed with this.
        file: What the manifest says of its file.

    Raises:
        EngineError: The file is not an end model.
    """

    def __init__(self, engine: Engine, file: EngineFile) -> None:
        self.engine = engine
        self.file = file
        self._input = ImageInput(engine, file.path)
        if not {"features", "logits"} <= engine.outputs.keys():
            raise EngineError(
                f"{file.path} is not an end model: it gives {sorted(engine.outputs)}, "
                "not features and logits"
            )
        self.feature_spec: TensorSpec = engine.outputs["features"]
        self._logits = engine.outputs["logits"]

    def infer(self, pixels: NDArray[np.uint8]) -> EndOutput:
        """Classify one frame.

        Args:
            pixels: uint8 (H, W, 3), RGB, of the model's size.

        Raises:
            EngineError: The size is wrong, or the engine fails.
        """
        out = self.engine.run(self._input.fill(pixels))
        return EndOutput(out["features"][0], dequantize(out["logits"][0], self._logits))

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()
