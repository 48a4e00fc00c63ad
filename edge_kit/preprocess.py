"""From a frame of any size to the pixels that an end model takes.

The exporter trains, calibrates and tests through this very class, so a board sees what the model
was made for, to the last rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import MissingExtraError
from edge_kit.manifest import Preprocessing

__all__ = ["Preprocessor"]

# Pillow first shrinks by a whole factor (a box filter, nearly free) and filters only the rest.
# A gap of 1.0 shrinks as far as that allows: five times faster from a camera's size.
_REDUCING_GAP = 1.0


class Preprocessor:
    """Resize frames by a bundle's rule. Normalization is inside the model file.

    Args:
        rule: Size and resize rule.
    """

    def __init__(self, rule: Preprocessing) -> None:
        self.rule = rule
        self._size = (rule.width, rule.height)
        self._shape = (rule.height, rule.width, 3)

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return uint8 RGB pixels of the model's size.

        Args:
            pixels: uint8 (H, W, 3), RGB, any size.

        Returns:
            (height, width, 3); `pixels` itself when its size is right already.

        Raises:
            MissingExtraError: A resize is needed and Pillow is not installed.
            ValueError: `pixels` is no uint8 RGB image.
        """
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ValueError(f"pixels are {pixels.dtype}{pixels.shape}, not uint8 (H, W, 3)")
        if pixels.shape == self._shape:
            return pixels
        image = _pillow().fromarray(np.ascontiguousarray(pixels))
        box = self._crop(pixels.shape[1], pixels.shape[0]) if self.rule.resize == "crop" else None
        small = image.resize(
            self._size, _pillow().Resampling.BILINEAR, box=box, reducing_gap=_REDUCING_GAP
        )
        return np.asarray(small)

    def _crop(self, width: int, height: int) -> tuple[float, float, float, float]:
        """Return the centred box of the target's aspect: short side to size, centre kept."""
        factor = min(width / self.rule.width, height / self.rule.height)
        w, h = factor * self.rule.width, factor * self.rule.height
        left, top = (width - w) / 2, (height - h) / 2
        return left, top, min(left + w, width), min(top + h, height)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Pillow", "photos", "resizing frames") from None
    return Image
