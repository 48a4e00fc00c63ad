"""Views for training: what a view may change, and what it must keep."""

from __future__ import annotations

import colorsys
import random

import numpy as np
import pytest
from PIL import Image

from exporters.data import augment as module
from exporters.data.augment import AREA, ASPECT, HUE, LIGHT, PATCH, augment

pytestmark = pytest.mark.export

SEEDS = range(40)
CHANCES = ("ROTATION_SHARE", "LIGHT_SHARE", "HUE_SHARE", "PATCH_SHARE")


@pytest.fixture
def only(monkeypatch):
    """Turn all changes by chance off but one, which always happens; crop and mirror stay."""

    def choose(*kept: str) -> None:
        for name in CHANCES:
            monkeypatch.setattr(module, name, 1.0 if name in kept else 0.0)

    return choose


def ramp(width: int = 200, height: int = 160) -> Image.Image:
    """A photo whose red is its column, whose green is its row, and whose blue is 100."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(width), np.arange(height)[:, None]
    pixels[..., 2] = 100
    return Image.fromarray(pixels)


def flat(colour: tuple[int, int, int], size: tuple[int, int] = (48, 40)) -> Image.Image:
    return Image.new("RGB", size, colour)


def test_augment_with_equal_seed_gives_equal_view():
    for seed in SEEDS:
        one, two = (augment(ramp(), 24, 20, random.Random(seed)) for _ in range(2))
        np.testing.assert_array_equal(one, two)


def test_augment_with_other_seed_gives_other_view():
    views = {augment(ramp(), 24, 20, random.Random(seed)).tobytes() for seed in SEEDS}
    assert len(views) == len(SEEDS)


def test_augment_reads_no_randomness_but_its_own():
    random.seed(1)
    one = augment(ramp(), 24, 20, random.Random(5))
    random.seed(2)
    np.testing.assert_array_equal(augment(ramp(), 24, 20, random.Random(5)), one)


def test_augment_leaves_photo_unchanged():
    photo = ramp()
    before = photo.tobytes()
    for seed in SEEDS:
        augment(photo, 24, 20, random.Random(seed))
    assert photo.tobytes() == before


@pytest.mark.parametrize("size", [(1, 1), (300, 3), (2, 50)])
def test_augment_of_odd_sizes_keeps_view_size(size):
    photo = Image.new("RGB", size, (9, 99, 199))
    for seed in range(40):
        assert augment(photo, 16, 16, random.Random(seed)).shape == (16, 16, 3)


def test_crop_keeps_allowed_area_and_aspect(only):
    only()
    for seed in SEEDS:
        view = augment(ramp(), 64, 64, random.Random(seed)).astype(float)
        columns = abs(view[:, -1, 0] - view[:, 0, 0]).mean() / 63 * 64
        rows = abs(view[-1, :, 1] - view[0, :, 1]).mean() / 63 * 64
        assert AREA[0] - 0.05 <= columns * rows / (200 * 160) <= AREA[1] + 0.02
        assert ASPECT[0] * 0.93 <= (columns / rows) / (200 / 160) <= ASPECT[1] * 1.07


def test_view_is_mirrored_about_every_second_time_and_never_upside_down(only):
    only()
    views = [augment(ramp(), 32, 32, random.Random(seed)).astype(int) for seed in range(200)]
    mirrored = sum(v[0, 0, 0] > v[0, -1, 0] for v in views)
    assert 70 < mirrored < 130
    assert all(v[0, 0, 1] < v[-1, 0, 1] for v in views)


def test_crop_alone_changes_no_colour(only):
    only()
    for seed in SEEDS:
        assert (augment(flat((10, 120, 230)), 16, 16, random.Random(seed)) == (10, 120, 230)).all()


def test_light_stays_within_its_bounds(only):
    only("LIGHT_SHARE")
    seen = [augment(flat((100,) * 3), 8, 8, random.Random(seed)) for seed in range(200)]
    grey = np.array([view.mean() for view in seen])
    assert all(np.ptp(view) <= 1 for view in seen)  # grey stays grey, flat stays flat
    assert 100 * LIGHT[0] - 2 <= grey.min() < 75
    assert 125 < grey.max() <= 100 * LIGHT[1] + 2


def test_hue_turns_colour_and_keeps_its_strength(only):
    only("HUE_SHARE")
    base = colorsys.rgb_to_hsv(200 / 255, 40 / 255, 40 / 255)
    turns = []
    for seed in SEEDS:
        view = augment(flat((200, 40, 40)), 8, 8, random.Random(seed)) / 255
        hue, saturation, value = colorsys.rgb_to_hsv(*view[0, 0])
        turns.append((hue - base[0] + 0.5) % 1 - 0.5)
        assert saturation == pytest.approx(base[1], abs=0.03)
        assert value == pytest.approx(base[2], abs=0.03)
    assert max(map(abs, turns)) <= HUE / 256 + 0.01
    assert min(turns) < -0.02
    assert max(turns) > 0.02


def test_hue_of_grey_photo_changes_nothing(only):
    only("HUE_SHARE")
    for seed in SEEDS:
        assert (augment(flat((90, 90, 90)), 8, 8, random.Random(seed)) == 90).all()


def test_patch_hides_one_square_of_bounded_side(only):
    only("PATCH_SHARE")
    sides = []
    for seed in SEEDS:
        view = augment(flat((10, 120, 230)), 40, 60, random.Random(seed))
        hidden = (view != (10, 120, 230)).any(2)
        rows, columns = np.flatnonzero(hidden.any(1)), np.flatnonzero(hidden.any(0))
        assert len(rows) == len(columns)
        assert hidden.sum() == len(rows) * len(columns)
        sides.append(len(rows))
    assert round(40 * PATCH[0]) <= min(sides) <= max(sides) <= round(40 * PATCH[1])


def test_rotation_tilts_by_few_degrees_and_fills_corners_with_one_colour(only):
    """A vertical edge through the middle leans; its slope is the angle."""
    only("ROTATION_SHARE")
    pixels = np.zeros((200, 200, 3), np.uint8)
    pixels[:, 100:] = (0, 255, 0)
    slopes = []
    for seed in SEEDS:
        view = augment(Image.fromarray(pixels), 64, 64, random.Random(seed)).astype(float)[..., 1]
        edge = np.abs(np.diff(view[24:40], axis=1)).argmax(1)
        slopes.append(np.degrees(np.arctan(np.polyfit(np.arange(16), edge, 1)[0])))
    assert max(map(abs, slopes)) < module.ROTATION_DEGREES * ASPECT[1] + 3
    assert max(slopes) > 2
    assert min(slopes) < -2


def test_view_keeps_enough_of_a_central_object(only):
    """What the label is about stays visible: half of a centred object's pixels at least."""
    only(*CHANCES[:1])
    pixels = np.zeros((120, 120, 3), np.uint8)
    pixels[30:90, 30:90] = 255
    for seed in SEEDS:
        view = augment(Image.fromarray(pixels), 48, 48, random.Random(seed))
        assert (view.min(2) > 128).mean() > 0.12
