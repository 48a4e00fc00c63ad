"""One random view of a photo for training: crop, turn, mirror, light, colour, a hidden patch."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from edge_kit.pixels.preprocess import resize

__all__ = ["augment"]

AREA = (0.45, 1.0)  # share of the photo that a crop keeps
ASPECT = (3 / 4, 4 / 3)  # relative to the photo's own
ROTATION_DEGREES, ROTATION_SHARE = 12.0, 0.4
LIGHT, LIGHT_SHARE = (0.65, 1.35), 0.8
HUE, HUE_SHARE = 18, 0.3  # of 256 steps round the circle
PATCH, PATCH_SHARE = (0.15, 0.35), 0.25  # side of the patch against the view's
_TRIES = 20


def augment(photo: Any, width: int, height: int, rng: random.Random) -> NDArray[np.uint8]:
    """Return one view.

    The recipe is the usual one for fine-tuning on a few thousand photos (random resized crop
    after Szegedy et al., 2015; random erasing after Zhong et al., 2017).

    Args:
        photo: A `PIL.Image.Image`, RGB.
        width: Of the view, pixels.
        height: Of the view, pixels.
        rng: Decides everything.

    Returns:
        uint8 (height, width, 3).
    """
    if rng.random() < ROTATION_SHARE:
        angle = rng.uniform(-ROTATION_DEGREES, ROTATION_DEGREES)
        fill = tuple(rng.randint(0, 255) for _ in range(3))
        photo = photo.rotate(angle, Image.Resampling.BILINEAR, fillcolor=fill)
    left, top, right, bottom = _crop(photo.width, photo.height, rng)
    # The device's own resize: its aliasing is something to learn, too.
    view = Image.fromarray(resize(np.asarray(photo)[top:bottom, left:right], width, height))
    if rng.random() < 0.5:
        view = view.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if rng.random() < LIGHT_SHARE:
        for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            view = kind(view).enhance(rng.uniform(*LIGHT))
    if rng.random() < HUE_SHARE:
        view = _turn_hue(view, rng.randint(-HUE, HUE))
    pixels = np.array(view)
    if rng.random() < PATCH_SHARE:
        _hide_patch(pixels, rng)
    return pixels


def _crop(width: int, height: int, rng: random.Random) -> tuple[int, int, int, int]:
    for _ in range(_TRIES):
        area = width * height * rng.uniform(*AREA)
        low, high = (math.log(a * width / height) for a in ASPECT)
        aspect = math.exp(rng.uniform(low, high))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            left, top = rng.randint(0, width - w), rng.randint(0, height - h)
            return left, top, left + w, top + h
    return 0, 0, width, height


def _turn_hue(view: Any, steps: int) -> Any:
    hue, saturation, value = view.convert("HSV").split()
    turned = hue.point([(v + steps) % 256 for v in range(256)])
    return Image.merge("HSV", (turned, saturation, value)).convert("RGB")


def _hide_patch(pixels: NDArray[np.uint8], rng: random.Random) -> None:
    height, width = pixels.shape[:2]
    side = round(min(height, width) * rng.uniform(*PATCH))
    top, left = rng.randint(0, height - side), rng.randint(0, width - side)
    pixels[top : top + side, left : left + side] = rng.randint(0, 255)
