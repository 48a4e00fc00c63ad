"""Pictures as JPEG files: what sending them would have cost, and thumbnails for the report."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import MissingExtraError
from edge_kit.sources.photo import read_photo

__all__ = ["QUALITY", "jpeg", "thumbnail"]

QUALITY = 75


def jpeg(pixels: NDArray[np.uint8]) -> bytes:
    """Return RGB pixels (H, W, 3) as a JPEG file of quality 75.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    return _save(_pillow().fromarray(pixels))


def thumbnail(path: Path, side: int = 160) -> bytes:
    """Return a photo as a JPEG file whose longer side has `side` pixels.

    Raises:
        MissingExtraError: Pillow is not installed.
        SourceError: The photo cannot be read.
    """
    image = _pillow().fromarray(read_photo(path))
    image.thumbnail((side, side))
    return _save(image)


def _save(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Pillow", "photos", "the demo") from None
    return Image
