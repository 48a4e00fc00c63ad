"""Pictures as JPEG files: what sending them would cost, and thumbnails for reports."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import MissingExtraError

__all__ = ["QUALITY", "jpeg_size", "small_jpeg", "thumbnail"]

QUALITY = 75


def jpeg_size(photo: NDArray[np.uint8], rule: Preprocessing) -> int:
    """Return the bytes of a photo as JPEG quality 75 at a model's input size.

    The photo is shrunk with an antialiasing filter, as one would who sends pictures. The device's
    own quick resize leaves fine noise, which costs a JPEG bytes and would flatter our messages.

    Args:
        photo: RGB pixels (H, W, 3) of any size.
        rule: Size and resize rule.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    return len(_save(_shrunk(photo, rule)))


def small_jpeg(photo: NDArray[np.uint8], rule: Preprocessing) -> bytes:
    """Return that same picture as a file, packed tighter without another loss.

    Args:
        photo: RGB pixels (H, W, 3) of any size.
        rule: Size and resize rule.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    return _save(_shrunk(photo, rule), optimize=True, progressive=True)


def _shrunk(photo: NDArray[np.uint8], rule: Preprocessing) -> Any:
    pillow = _pillow()
    image, size = pillow.fromarray(photo), (rule.width, rule.height)
    if rule.resize == "crop":
        factor = min(image.width / size[0], image.height / size[1])
        width, height = factor * size[0], factor * size[1]
        left, top = (image.width - width) / 2, (image.height - height) / 2
        box = (left, top, left + width, top + height)
    else:
        box = (0, 0, image.width, image.height)
    return image.resize(size, pillow.Resampling.BILINEAR, box=box)


def thumbnail(photo: NDArray[np.uint8], side: int = 160) -> bytes:
    """Return a photo as a JPEG file whose longer side has `side` pixels.

    Raises:
        MissingExtraError: Pillow is not installed.
    """
    image = _pillow().fromarray(photo)
    image.thumbnail((side, side))
    return _save(image)


def _save(image: Any, **options: bool) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=QUALITY, **options)
    return out.getvalue()


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Pillow", "photos", "making JPEG files") from None
    return Image
