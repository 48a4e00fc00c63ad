"""From a frame of any size to the pixels that an end model takes.

The exporter trains, calibrates and tests through this very code, so a board sees what the model
was made for, to the last rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import MissingExtraError

__all__ = ["Preprocessor", "resize"]


class Preprocessor:
    """Resize frames by a bundle's rule. Normalization is inside the model file.

    Args:
        rule: Size and resize rule.
    """

    def __init__(self, rule: Preprocessing) -> None:
        self.rule = rule
        self._shape = (rule.height, rule.width, 3)

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return uint8 RGB pixels of the model's size.

        Args:
            pixels: uint8 (H, W, 3), RGB, any size.

        Returns:
            (height, width, 3); `pixels` itself when its size is right already.

        Raises:
            MissingExtraError: A resize is needed and OpenCV is not installed.
            ValueError: `pixels` is not a uint8 RGB image.
        """
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ValueError(f"pixels are {pixels.dtype}{pixels.shape}, not uint8 (H, W, 3)")
        if pixels.shape == self._shape:
            return pixels
        if self.rule.resize == "crop":
            pixels = self._centre(pixels)
        return resize(pixels, self.rule.width, self.rule.height)

    def _centre(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the centred part of the target's aspect, as large as fits; a view."""
        height, width = pixels.shape[:2]
        factor = min(width / self.rule.width, height / self.rule.height)
        w = max(1, round(factor * self.rule.width))
        h = max(1, round(factor * self.rule.height))
        left, top = (width - w) // 2, (height - h) // 2
        return pixels[top : top + h, left : left + w]


def resize(pixels: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    """Shrink by a whole factor, averaging, then interpolate linearly to the size asked for.

    Both steps have vector instructions on every board, and take a fifth of the time of a filter
    whose width follows the scale.

    Args:
        pixels: uint8 (H, W, 3), any strides.
        width: Of the result, pixels.
        height: Likewise.

    Raises:
        MissingExtraError: OpenCV is not installed.
    """
    cv2 = _opencv()
    pixels = np.ascontiguousarray(pixels)
    whole = min(pixels.shape[1] // width, pixels.shape[0] // height)
    if whole > 1:
        # Without the remainder at two edges, each result is the mean of one whole block.
        smaller = (pixels.shape[1] // whole, pixels.shape[0] // whole)
        blocks = pixels[: smaller[1] * whole, : smaller[0] * whole]
        pixels = cv2.resize(blocks, smaller, interpolation=cv2.INTER_AREA)
    if pixels.shape[:2] != (height, width):
        pixels = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)
    return pixels


def _opencv() -> Any:
    try:
        import cv2
    except ImportError:
        raise MissingExtraError("opencv-python-headless", "photos", "resizing frames") from None
    return cv2
