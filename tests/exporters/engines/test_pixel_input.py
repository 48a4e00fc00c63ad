"""How pixels enter an integer model, against normalization over all 256 levels."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from exporters.engines.pixel_input import pixel_input  # noqa: E402
from exporters.graph.halves import Normalize  # noqa: E402
from tests.support.export.tiny_halves import PER_CHANNEL  # noqa: E402

pytestmark = pytest.mark.export

LEVELS = np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16).repeat(3, axis=1)  # every grey level


def taken(normalize: Normalize) -> np.ndarray:
    """What the network behind the input computes on, before activations are rounded."""
    front = pixel_input(normalize)
    with torch.no_grad():
        return front.module(torch.from_numpy(front.real(LEVELS))).numpy()


def normalized(normalize: Normalize) -> np.ndarray:
    return normalize(torch.from_numpy(LEVELS.astype(np.float32))).numpy()


@pytest.mark.parametrize(("mean", "std"), [(127.0, 128.0), (0.0, 255.0), (255.0, 1.0), (128, 64)])
def test_uniform_normalization_on_grey_level_is_exact(mean, std):
    normalize = Normalize((mean,) * 3, (std,) * 3)
    np.testing.assert_allclose(taken(normalize), normalized(normalize), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("mean", [127.4, 127.5, 127.6, 0.3])
def test_uniform_normalization_between_levels_is_off_by_half_a_level_at_most(mean):
    normalize = Normalize((mean,) * 3, (128.0,) * 3)
    off = np.abs(taken(normalize) - normalized(normalize)) * 128
    assert off.max() <= 0.5 + 1e-4


def test_per_channel_normalization_is_exact():
    normalize = Normalize(*PER_CHANNEL)
    np.testing.assert_allclose(taken(normalize), normalized(normalize), rtol=1e-5, atol=1e-5)


def test_uniform_normalization_costs_no_layer():
    front = pixel_input(Normalize((127.0,) * 3, (128.0,) * 3))
    assert isinstance(front.module, nn.Identity)
    assert (front.scale, front.zero_point) == (1 / 128, 127)


def test_scale_is_a_float32_that_the_file_can_hold():
    front = pixel_input(Normalize((100.0,) * 3, (57.3,) * 3))
    assert front.scale == float(np.float32(1 / 57.3))


@pytest.mark.parametrize(
    ("mean", "std"), [PER_CHANNEL, ((-3.0,) * 3, (2.0,) * 3), ((300.0,) * 3, (2.0,) * 3)]
)
def test_normalization_without_uint8_zero_point_becomes_depthwise_layer(mean, std):
    front = pixel_input(Normalize(mean, std))
    assert isinstance(front.module, nn.Conv2d)
    assert front.module.groups == front.module.in_channels == 3
    assert (front.scale, front.zero_point) == (1.0, 0)
    np.testing.assert_allclose(taken(Normalize(mean, std)), normalized(Normalize(mean, std)), 1e-4)


def test_real_keeps_layout_and_gives_float32():
    front = pixel_input(Normalize((127.0,) * 3, (128.0,) * 3))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3)).astype(np.uint8)
    out = front.real(pixels)
    assert (out.shape, out.dtype) == ((2, 5, 7, 3), np.float32)
    np.testing.assert_array_equal(out, ((pixels.astype(np.float32) - 127) / 128))
