"""Models that classify pixels, whatever engine runs them; an end model gives features too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.split import EngineFile
from edge_kit.engines.engine import Engine
from edge_kit.engines.image_input import ImageInput
from edge_kit.errors import EngineError
from edge_kit.tensors import TensorSpec, dequantize

__all__ = ["EndModel", "EndOutput", "ImageModel"]


@dataclass(frozen=True, eq=False)
class EndOutput:
    """What an end model says of one frame.

    Attributes:
        features: Raw values of the engine's own layout, shape and dtype of `feature_spec`.
        logits: float32 (classes,).
    """

    features: NDArray[Any]
    logits: NDArray[np.float32]


class ImageModel:
    """A model that classifies one frame a call. Not thread-safe: one thread runs it.

    Args:
        engine: A loaded engine; closed with this.
        file: What the manifest says of its file.

    Raises:
        EngineError: The file does not take one image, or does not give the outputs.
    """

    outputs: ClassVar[frozenset[str]] = frozenset({"logits"})

    def __init__(self, engine: Engine, file: EngineFile) -> None:
        self.engine = engine
        self.file = file
        self._input = ImageInput(engine, file.path)
        if not self.outputs <= engine.outputs.keys():
            raise EngineError(
                f"{file.path} gives {sorted(engine.outputs)}, not {sorted(self.outputs)}"
            )
        self._logits = engine.outputs["logits"]

    def classify(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the logits of one frame, (classes,).

        Args:
            pixels: uint8 (H, W, 3), RGB, of the model's size.

        Raises:
            EngineError: The size is wrong, or the engine fails.
        """
        return dequantize(self._run(pixels)["logits"][0], self._logits)

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()

    def _run(self, pixels: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        return self.engine.run(self._input.fill(pixels))


class EndModel(ImageModel):
    """The device's half; arguments and errors as `ImageModel`."""

    outputs = frozenset({"features", "logits"})

    def __init__(self, engine: Engine, file: EngineFile) -> None:
        super().__init__(engine, file)
        self.feature_spec: TensorSpec = engine.outputs["features"]

    def infer(self, pixels: NDArray[np.uint8]) -> EndOutput:
        """Return features and logits of one frame; argument and errors as `classify`."""
        out = self._run(pixels)
        return EndOutput(out["features"][0], dequantize(out["logits"][0], self._logits))
