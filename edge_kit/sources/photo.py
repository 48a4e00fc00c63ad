"""One photo."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import MissingExtraError, SourceError
from edge_kit.sources.source import Frame

__all__ = ["PHOTO_SUFFIXES", "PhotoSource", "is_photo", "read_photo"]

PHOTO_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".ppm"})


def is_photo(path: Path) -> bool:
    """Tell a photo by its name; names like ``._photo.jpg`` are what macOS leaves on cards."""
    return (
        path.suffix.lower() in PHOTO_SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def read_photo(path: Path) -> NDArray[np.uint8]:
    """Decode a photo into uint8 (H, W, 3) RGB, turned upright by its EXIF orientation.

    Raises:
        MissingExtraError: Pillow is not installed.
        SourceError: It is missing, truncated or no photo.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise MissingExtraError("Pillow", "photos", "reading photos") from None
    try:
        with Image.open(path) as image:
            return _to_rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError:
        raise SourceError(f"there is no photo at {path}", "check the path") from None
    # Pillow's decoders raise OSError, ValueError, SyntaxError, struct.error and their own kinds,
    # depending on the format and on where the damage lies; all mean the same here.
    except Exception as error:
        raise SourceError(f"{path} cannot be read as a photo ({error})") from None


def _to_rgb(image: Any) -> NDArray[np.uint8]:
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of an unknown range")
    if image.mode.startswith("I"):
        # Grey of 16 bits, whose upper byte counts; Pillow's own way turns all above 255 white.
        grey = np.clip(np.asarray(image), 0, 0xFFFF) >> 8
        return np.repeat(grey.astype(np.uint8)[..., np.newaxis], 3, axis=2)
    return np.asarray(image.convert("RGB"))


class PhotoSource:
    """Yield one photo."""

    live = False
    dropped = 0
    skipped = 0

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def frames(self) -> Iterator[Frame]:
        """Yield it once."""
        yield Frame(read_photo(self._path), time.time(), 0, self._path.name)

    def close(self) -> None:
        """Nothing is open."""
