"""The halves and their bottleneck: normalization, rounding, composition, principal components."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402

from exporters.graph.halves import (  # noqa: E402
    CloudHalf,
    EndModel,
    ExitHead,
    Normalize,
    laplace_bits,
    principal_bottleneck,
    round_features,
)
from tests.support.export.tiny_halves import CLASSES, batch, photos, trained  # noqa: E402

pytestmark = pytest.mark.export

PIXELS, _ = photos(16, seed=3)


def test_normalize_subtracts_mean_and_divides_by_std_per_channel():
    pixels = torch.tensor([10.0, 20.0, 30.0]).view(1, 3, 1, 1).expand(2, 3, 4, 5)
    out = Normalize((10.0, 10.0, 40.0), (1.0, 5.0, 2.0))(pixels)
    assert out.shape == (2, 3, 4, 5)
    for channel, value in enumerate((0.0, 2.0, -5.0)):
        assert (out[:, channel] == value).all()


@pytest.mark.parametrize(
    ("mean", "std", "uniform"),
    [
        ((127.0,) * 3, (128.0,) * 3, True),
        ((127.0, 127.0, 126.0), (128.0,) * 3, False),
        ((127.0,) * 3, (128.0, 127.0, 128.0), False),
        ((0.0,), (1.0,), True),
    ],
)
def test_normalize_is_uniform_only_with_one_mean_and_one_std(mean, std, uniform):
    assert Normalize(mean, std).uniform is uniform


def test_round_features_gives_int8_levels_and_saturates():
    features = torch.tensor([-99.0, -32.1, -0.13, -0.12, 0.0, 0.12, 0.13, 0.9, 31.8, 99.0])
    expected = torch.tensor([-32.0, -32.0, -0.25, 0.0, 0.0, 0.0, 0.25, 1.0, 31.75, 31.75])
    assert torch.equal(round_features(features, 0.25), expected)


def test_round_features_breaks_ties_to_even_like_numpy():
    ties = torch.arange(-4.5, 5.0)
    assert torch.equal(round_features(ties, 1.0), torch.from_numpy(np.rint(ties.numpy())))


@given(st.lists(st.floats(-50, 50, width=32), min_size=1), st.sampled_from([0.25, 0.5, 1.0, 2.0]))
def test_round_features_twice_equals_once(values, scale):
    once = round_features(torch.tensor(values), scale)
    assert torch.equal(round_features(once, scale), once)


def test_round_features_passes_gradient_inside_range_only():
    features = torch.tensor([0.3, -5.4, 126.9, 200.0, -200.0], requires_grad=True)
    (round_features(features, 1.0) * torch.arange(1.0, 6.0)).sum().backward()
    assert features.grad.tolist() == [1.0, 2.0, 3.0, 0.0, 0.0]


@pytest.mark.parametrize("size", [(1, 1), (4, 4), (7, 5), (8, 8), (9, 14), (16, 16), (17, 20)])
def test_exit_head_pools_whole_map_of_any_size(size):
    torch.manual_seed(0)
    head = ExitHead(3, 5, size, width=4).eval()
    seen = []
    head.pool.register_forward_hook(lambda layer, given, out: seen.append(tuple(out.shape)))
    assert head(torch.randn(2, 3, *size)).shape == (2, 5)
    assert seen == [(2, 8, 1, 1)]


def test_end_model_gives_real_features_and_logits_of_rounded_ones():
    end = trained().end
    with torch.no_grad():
        features, logits = end(batch(PIXELS))
        real = end.encode(end.trunk(end.normalize(batch(PIXELS))))
        rounded = (real / 0.25).round().clamp(-128, 127) * 0.25
        torch.testing.assert_close(features, real)
        torch.testing.assert_close(logits, end.head(rounded))
        assert (features != rounded).any()
        assert not torch.allclose(logits, end.head(real), atol=1e-4)


def test_halves_give_cloud_logits_of_rounded_features():
    halves = trained()
    with torch.no_grad():
        features, exit_logits, cloud_logits = halves(batch(PIXELS))
        rounded = round_features(features, 0.25)
        torch.testing.assert_close(exit_logits, halves.end(batch(PIXELS))[1])
        torch.testing.assert_close(cloud_logits, halves.cloud.tail(halves.cloud.decode(rounded)))
    assert cloud_logits.shape == (16, CLASSES)


def activations(n: int = 60, rank: int = 8, seed: int = 0):
    """Maps of 8 channels that lie in `rank` directions of falling strength, off centre."""
    random = np.random.default_rng(seed)
    basis = np.linalg.qr(random.normal(size=(8, 8)))[0][:rank]
    strength = 4.0 * 0.6 ** np.arange(rank)
    values = random.normal(size=(n, 5, 5, rank)) * strength
    maps = values @ basis + random.normal(size=8)
    return torch.from_numpy(maps.transpose(0, 3, 1, 2).astype(np.float32))


def test_bottleneck_of_full_width_is_lossless():
    x = activations()
    encode, decode = principal_bottleneck(x, 8, 3.0)
    torch.testing.assert_close(decode(encode(x)), x, atol=1e-3, rtol=1e-3)


def test_bottleneck_of_low_rank_maps_is_lossless_at_that_rank():
    x = activations(rank=3)
    encode, decode = principal_bottleneck(x, 3, 3.0)
    torch.testing.assert_close(decode(encode(x)), x, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_bottleneck_loses_exactly_the_weakest_components(channels):
    x = activations()
    flat = x.permute(0, 2, 3, 1).reshape(-1, 8).double().numpy()
    spectrum = np.sort(np.linalg.eigvalsh(np.cov(flat.T)))[::-1]
    encode, decode = principal_bottleneck(x, channels, 3.0)
    with torch.no_grad():
        lost = (decode(encode(x)) - x).pow(2).sum().item() / (len(flat) - 1)
    assert lost == pytest.approx(spectrum[channels:].sum(), rel=1e-3)


def test_bottleneck_features_are_centred_uncorrelated_and_sorted():
    encode, _ = principal_bottleneck(activations(), 5, 3.0)
    with torch.no_grad():
        flat = encode(activations()).permute(0, 2, 3, 1).reshape(-1, 5).numpy()
    assert np.abs(flat.mean(0)).max() < 1e-3
    covariance = np.cov(flat.T)
    variances = np.diag(covariance)
    assert np.abs(covariance - np.diag(variances)).max() < 1e-3 * variances[0]
    assert list(variances) == sorted(variances, reverse=True)


@pytest.mark.parametrize("bits", [1.0, 2.0, 4.0])
def test_bottleneck_gain_gives_asked_entropy(bits):
    encode, _ = principal_bottleneck(activations(), 4, bits)
    with torch.no_grad():
        codes = encode(activations()).round().flatten().numpy()
    _, counts = np.unique(codes, return_counts=True)
    p = counts / counts.sum()
    assert -(p * np.log2(p)).sum() == pytest.approx(bits, abs=0.05)


def mean_bits(features: np.ndarray, b: float) -> float:
    """Integrate the Laplace density over each unit interval, by the midpoint rule."""
    steps = (np.arange(400) + 0.5) / 400 - 0.5
    inside = np.exp(-np.abs(features.ravel()[:, None] + steps) / b) / (2 * b)
    return float(-np.log2(inside.mean(1)).mean())


@pytest.mark.parametrize("spread", [0.5, 1.5, 3.0])
def test_laplace_bits_equal_integral_of_density(spread):
    features = 2 * torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(5)
    given_bits = laplace_bits(features, 0.5, torch.tensor(spread)).item()
    torch.manual_seed(5)
    noisy = (features / 0.5 + torch.rand_like(features) - 0.5).numpy()
    b = math.log1p(math.exp(spread)) + 0.05
    assert given_bits == pytest.approx(mean_bits(noisy, b), rel=2e-3)


def test_laplace_bits_rise_with_spread_of_features():
    torch.manual_seed(0)
    noise, spread = torch.randn(4, 3, 8, 8), torch.tensor(1.0)
    bits = [laplace_bits(k * noise, 1.0, spread).item() for k in (0.1, 1.0, 4.0, 16.0)]
    assert bits == sorted(bits)


def test_laplace_bits_gradient_shrinks_features_and_fits_spread():
    torch.manual_seed(0)
    features = (3 * torch.randn(2, 3, 8, 8)).requires_grad_()
    spread = torch.tensor(0.0, requires_grad=True)
    laplace_bits(features, 1.0, spread).backward()
    far = features.detach().abs() > 2
    assert (features.grad[far].sign() == features.detach()[far].sign()).all()
    assert spread.grad < 0  # a wider law fits such features better


def test_cloud_half_decodes_before_tail():
    decode, tail = nn.Conv2d(2, 4, 1), nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    x = torch.randn(5, 2, 2, 2)
    with torch.no_grad():
        torch.testing.assert_close(CloudHalf(decode, tail)(x), tail(decode(x)))


def test_end_model_with_coarse_scale_saturates_features_for_head():
    end = trained().end
    coarse = EndModel(end.normalize, end.trunk, end.encode, nn.Identity(), 0.001).eval()
    with torch.no_grad():
        _, seen = coarse(batch(PIXELS))
    assert seen.min() >= -0.128 - 1e-6
    assert seen.max() <= 0.127 + 1e-6


def test_laplace_bits_of_impossible_value_are_capped_at_thirty():
    assert laplace_bits(torch.full((1, 1, 2, 2), 1e4), 1.0, torch.tensor(0.0)).item() == (
        pytest.approx(-math.log2(1e-9))
    )
