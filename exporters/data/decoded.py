"""Photos as the model sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_kit.pixels.jpeg import jpeg_size
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.photo import read_photo
from exporters.data.photos import Photo, PhotoSet
from exporters.progress import Tick, ignore

__all__ = ["DecodedPhotos", "load_pixels", "spread"]


@dataclass(frozen=True)
class DecodedPhotos:
    """A split as the model sees it.

    Attributes:
        pixels: Memory map of uint8 (N, h, w, 3).
        labels: Class indices, (N,).
        jpeg_bytes: What each photo would take as a JPEG, (N,).
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    jpeg_bytes: NDArray[np.int64]


def load_pixels(
    photos: PhotoSet,
    chosen: Sequence[Photo],
    preprocessor: Preprocessor,
    tick: Tick = ignore,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Decode and resize photos exactly as a device does.

    Returns:
        Pixels (N, height, width, 3), in the order of `chosen`, and what each photo would take as
        a JPEG, bytes (N,); see `edge_kit.pixels.jpeg.jpeg_size`.
    """
    rule = preprocessor.rule
    pixels = np.empty((len(chosen), rule.height, rule.width, 3), np.uint8)
    jpeg_bytes = np.empty(len(chosen), np.int64)
    for i, photo in enumerate(chosen):
        image = read_photo(photos.path(photo))
        pixels[i], jpeg_bytes[i] = preprocessor(image), jpeg_size(image, rule)
        tick(i + 1, len(chosen))
    return pixels, jpeg_bytes


def spread(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of `count` rows, evenly spread over photos sorted by class."""
    if count <= most:
        return np.arange(count)
    return np.linspace(0, count - 1, most).round().astype(np.int64)
