from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.pixels.jpeg import jpeg_size, thumbnail


@pytest.mark.parametrize("resize", ["squash", "crop"])
def test_jpeg_that_messages_are_compared_with_is_no_noisier_than_needed(resize):
    """Detail finer than a pixel of the model must not cost the JPEG bytes."""
    board = np.indices((640, 480)).sum(axis=0) % 2 * 255
    photo = np.repeat(board[:, :, None].astype(np.uint8), 3, axis=2)
    rule = Preprocessing(128, 128, resize=resize)
    assert jpeg_size(photo, rule) <= jpeg_size(np.full((640, 480, 3), 127, np.uint8), rule) + 100


def test_detail_costs_bytes():
    rule = Preprocessing(32, 32)
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    assert jpeg_size(noise, rule) > jpeg_size(np.full((32, 32, 3), 90, np.uint8), rule) > 0


def test_thumbnail_keeps_the_shape_of_the_photo():
    small = thumbnail(np.zeros((200, 400, 3), np.uint8), 100)
    with Image.open(io.BytesIO(small)) as image:
        assert image.size == (100, 50)
