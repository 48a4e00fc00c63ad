"""An end model: pixels in, int8 features and logits out, whatever engine runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.split import EngineFile
from edge_kit.engines.engine import Engine
from edge_kit.errors import EngineError
from edge_kit.tensors import TensorSpec, dequantize

__all__ = ["EndModel", "EndOutput", "pixel_filler"]


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

    The input of every model file holds pixel values; normalization is inside the graph. By dtype
    that is the pixel itself (uint8), the pixel minus 128 (int8), or a float from 0 to 255.

    Args:
        engine: A loaded engine; closed with this.
        file: What the manifest says of its file.

    Raises:
        EngineError: The file is no end model.
    """

    def __init__(self, engine: Engine, file: EngineFile) -> None:
        self.engine = engine
        self.file = file
        image = engine.inputs.get("image")
        if image is None or len(engine.inputs) != 1 or image.layout not in ("NCHW", "NHWC"):
            raise EngineError(f"{file.path} is no end model: it does not take one 'image'")
        if not {"features", "logits"} <= engine.outputs.keys():
            raise EngineError(f"{file.path} is no end model: it gives {sorted(engine.outputs)}")
        self.feature_spec: TensorSpec = engine.outputs["features"]
        self._logits = engine.outputs["logits"]
        shape = image.shape if image.layout == "NHWC" else (*image.shape[1:], image.shape[0])
        *rows, channels = shape
        if channels != 3:
            raise EngineError(f"the model takes {channels} channels, a frame has 3")
        self._shape = (*rows, 3)
        self._input = np.zeros((1, *image.shape), dtype=image.dtype)
        self._fill = pixel_filler(self._input, image)

    def infer(self, pixels: NDArray[np.uint8]) -> EndOutput:
        """Classify one frame.

        Args:
            pixels: uint8 (H, W, 3), RGB, of the model's size.

        Raises:
            EngineError: The size is wrong, or the engine fails.
        """
        if pixels.shape != self._shape or pixels.dtype != np.uint8:
            raise EngineError(
                f"the frame is {pixels.dtype}{pixels.shape}, the model takes uint8{self._shape}"
            )
        self._fill(pixels)
        out = self.engine.run({"image": self._input})
        return EndOutput(out["features"][0], dequantize(out["logits"][0], self._logits))

    def close(self) -> None:
        """Close the engine."""
        self.engine.close()


def pixel_filler(buffer: NDArray[Any], image: TensorSpec) -> Callable[[NDArray[np.uint8]], None]:
    """Return the one pass that brings pixels into an input buffer.

    Args:
        buffer: (N, *image.shape) of its dtype.
        image: The model's input, see `EndModel`.

    Returns:
        A function of uint8 pixels, (N, H, W, C), or (H, W, C) for all rows.
    """
    # Seen as (N, H, W, C) whatever its layout, so that one strided copy does transpose and cast.
    target = buffer.transpose(0, 2, 3, 1) if image.layout == "NCHW" else buffer
    if image.dtype == "int8":
        # pixel - 128 in two's complement is the pixel with its top bit flipped
        raw = target.view(np.uint8)
        return lambda pixels: _discard(np.bitwise_xor(pixels, np.uint8(0x80), out=raw))
    return lambda pixels: np.copyto(target, pixels, casting="safe")


def _discard(_value: object) -> None:
    """Drop a result."""
