"""Pixels to the ``image`` input of a model.

Normalization is inside the graph, so an input holds pixel values. By dtype that is the pixel itself
(uint8), the pixel minus 128 (int8), or a float from 0 to 255.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.engines.engine import Engine, Tensors
from edge_kit.errors import EngineError
from edge_kit.tensors import TensorSpec

__all__ = ["ImageInput", "image_batch"]


class ImageInput:
    """The input of one frame, filled again for every frame.

    Args:
        engine: A loaded engine.
        path: Of its file, for messages.

    Raises:
        EngineError: The model does not take one ``image`` of three channels.
    """

    def __init__(self, engine: Engine, path: str) -> None:
        image = engine.inputs.get("image")
        if image is None or len(engine.inputs) != 1 or image.layout not in ("NCHW", "NHWC"):
            raise EngineError(f"{path} takes {sorted(engine.inputs)}, not one image")
        self._buffer = np.zeros((1, *image.shape), image.dtype)
        self._layout = image.layout
        rows = image.shape[1:] if image.layout == "NCHW" else image.shape[:2]
        self.shape = (*rows, 3)
        if image.size != rows[0] * rows[1] * 3:
            raise EngineError(f"the image of {path} is {image.shape}, a frame has 3 channels")

    def fill(self, pixels: NDArray[np.uint8]) -> Tensors:
        """Return what the engine takes for uint8 (H, W, 3) RGB; valid until the next call.

        Raises:
            EngineError: The frame is not of the model's size.
        """
        if pixels.shape != self.shape or pixels.dtype != np.uint8:
            raise EngineError(
                f"the frame is {pixels.dtype}{pixels.shape}, the model takes uint8{self.shape}"
            )
        _fill(self._buffer, self._layout, pixels)
        return {"image": self._buffer}


def image_batch(pixels: NDArray[np.uint8], spec: TensorSpec) -> NDArray[Any]:
    """Return what an ``image`` input of `spec` takes for uint8 pixels (N, H, W, channels)."""
    batch = np.empty((len(pixels), *spec.shape), spec.dtype)
    _fill(batch, spec.layout, pixels)
    return batch


def _fill(target: NDArray[Any], layout: str, pixels: NDArray[np.uint8]) -> None:
    # Seen as (N, H, W, channels) in both layouts: one strided copy transposes and casts.
    view = target.transpose(0, 2, 3, 1) if layout == "NCHW" else target
    if target.dtype == np.int8:
        # pixel - 128 in two's complement is the pixel with its top bit flipped
        np.bitwise_xor(pixels, np.uint8(0x80), out=view.view(np.uint8))
    else:
        np.copyto(view, pixels, casting="safe")
