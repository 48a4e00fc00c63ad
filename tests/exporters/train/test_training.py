"""Training on cached features: it learns, leaves the trunk alone, and repeats itself by seed."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.graph.halves import Halves  # noqa: E402
from exporters.judge.outcome import message_size  # noqa: E402
from exporters.train.training import (  # noqa: E402
    FeatureCache,
    TrainingRecipe,
    fitting_channels,
    train_halves,
    train_tail,
)
from tests.support.export.tiny_halves import (  # noqa: E402
    CLASSES,
    CUT_CHANNELS,
    Tail,
    batch,
    photos,
    trained,
)

pytestmark = pytest.mark.export

RECIPE = TrainingRecipe(
    channels=4, message_bytes=250.0, epochs=4, tail_epochs=3, batch=16, exit_width=8
)
PIXELS, LABELS = photos(96, seed=21)


def features(pixels: np.ndarray) -> np.ndarray:
    end = trained().end
    with torch.no_grad():
        return end.trunk(end.normalize(batch(pixels))).numpy()


def cached(n: int = 160, views: int = 2) -> FeatureCache:
    """Trunk features of photos and of their mirror images."""
    pixels, labels = photos(n, seed=20)
    made = [features(pixels), features(np.ascontiguousarray(pixels[:, :, ::-1]))]
    return FeatureCache([v.astype(np.float16) for v in made[:views]], labels)


@pytest.fixture(scope="module")
def cache() -> FeatureCache:
    return cached()


@pytest.fixture(scope="module")
def tail(cache) -> nn.Module:
    """A tail that `train_tail` trained from nothing."""
    torch.manual_seed(3)
    start = Tail()
    return train_tail(start, list(start.fc.parameters()), cache, RECIPE, lambda done, total: None)


def halves(cache: FeatureCache, tail: nn.Module, recipe=RECIPE, tick=lambda d, t: None) -> Halves:
    end = trained().end
    return train_halves(end.normalize, end.trunk, tail, cache, CLASSES, recipe, tick)


@pytest.fixture(scope="module")
def made(cache, tail) -> Halves:
    return halves(cache, tail)


def loss_and_accuracy(logits: torch.Tensor) -> tuple[float, float]:
    truth = torch.from_numpy(LABELS)
    loss = F.cross_entropy(logits, truth).item()
    return loss, float((logits.argmax(1) == truth).float().mean())


def held_out(module: nn.Module) -> tuple[float, float]:
    with torch.no_grad():
        return loss_and_accuracy(module.eval()(torch.from_numpy(features(PIXELS))))


def test_cache_batch_picks_a_view_for_each_row():
    views = [np.full((3, 2, 1, 1), 10 * v, np.float16) for v in range(2)]
    for v, view in enumerate(views):
        view[:, 0, 0, 0] = [10 * v + k for k in range(3)]
    cache = FeatureCache(views, np.arange(3))
    picked = cache.batch(np.array([1, 0, 1]), np.array([2, 2, 0]))
    assert picked[:, 0, 0, 0].tolist() == [12.0, 2.0, 10.0]
    assert picked.dtype == torch.float32


def test_cache_batch_is_channels_last():
    x = cached(4).batch(np.zeros(4, int), np.arange(4))
    assert x.shape == (4, CUT_CHANNELS, 8, 8)
    assert x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("message_bytes", "positions", "channels"),
    [
        (650.0, 14 * 14, 8),  # (650 - 127) * 8 bits over 2.6 * 196
        (650.0, 7 * 7, 33),
        (2000.0, 14 * 14, 29),
        (100.0, 14 * 14, 4),  # less than the frame itself
    ],
)
def test_fitting_channels_equals_hand_computed(message_bytes, positions, channels):
    assert fitting_channels(message_bytes, positions) == channels


def test_train_tail_lowers_loss_on_photos_it_never_saw(tail):
    torch.manual_seed(3)
    before, _ = held_out(Tail())
    after, accuracy = held_out(tail)
    assert after < 0.6 * before
    assert accuracy > 0.85
    assert not tail.training


def test_train_tail_returns_average_and_trains_start_in_place(cache):
    torch.manual_seed(3)
    start = Tail()
    before = start.fc.weight.detach().clone()
    average = train_tail(start, [], cache, replace(RECIPE, tail_epochs=1), lambda d, t: None)
    assert average is not start
    travelled = [float((w.detach() - before).norm()) for w in (start.fc.weight, average.fc.weight)]
    assert 0 < travelled[1] < travelled[0]


def test_train_halves_learns_exit_and_cloud_half(made, tail):
    with torch.no_grad():
        _, exit_logits, cloud_logits = made(batch(PIXELS))
    _, exit_accuracy = loss_and_accuracy(exit_logits)
    _, cloud_accuracy = loss_and_accuracy(cloud_logits)
    _, full_accuracy = held_out(tail)
    assert exit_accuracy > 0.8
    assert cloud_accuracy > full_accuracy - 0.06


def test_train_halves_of_more_epochs_lowers_both_losses(cache, tail, made):
    short = halves(cache, tail, replace(RECIPE, epochs=1))
    with torch.no_grad():
        before, after = short(batch(PIXELS)), made(batch(PIXELS))
    for k in (1, 2):  # exit, cloud
        assert loss_and_accuracy(after[k])[0] < loss_and_accuracy(before[k])[0]


def test_train_halves_leaves_trunk_and_teacher_unchanged(cache, tail):
    trunk = trained().end.trunk
    before = copy.deepcopy((trunk.state_dict(), tail.state_dict()))
    result = halves(cache, tail, replace(RECIPE, epochs=1))
    for old, module in zip(before, (trunk, tail), strict=True):
        assert all(torch.equal(old[k], v) for k, v in module.state_dict().items())
    assert result.end.trunk is trunk
    assert result.cloud.tail is not tail
    assert not torch.equal(result.cloud.tail.fc.weight, tail.fc.weight)


def test_train_halves_gives_step_one_and_evaluation_mode(made):
    assert made.end.feature_scale == 1.0
    assert (made.end.encode.out_channels, made.cloud.decode.in_channels) == (4, 4)
    assert not any(m.training for m in (*made.end.modules(), *made.cloud.modules()))


def test_train_halves_with_equal_seed_gives_equal_weights(cache, tail):
    recipe = replace(RECIPE, epochs=1)
    torch.manual_seed(99)
    first = halves(cache, tail, recipe)
    torch.manual_seed(7)
    again, other = halves(cache, tail, recipe), halves(cache, tail, replace(recipe, seed=5))
    assert torch.equal(first.end.encode.weight, again.end.encode.weight)
    assert torch.equal(first.end.head.fc.weight, again.end.head.fc.weight)
    assert not torch.equal(first.end.head.fc.weight, other.end.head.fc.weight)


def test_train_halves_steers_messages_towards_asked_size(cache, tail):
    spec = TensorSpec("features", (4, 8, 8), "NCHW", "int8", 1.0, 0)
    sizes = []
    for message_bytes in (130.0, 400.0):
        result = halves(cache, tail, replace(RECIPE, message_bytes=message_bytes))
        with torch.no_grad():
            codes = result(batch(PIXELS[:32]))[0].round().clamp(-128, 127).to(torch.int8)
        sizes.append(float(np.mean(message_size(codes.numpy(), spec))))
    assert sizes[0] < 0.75 * sizes[1]


def test_rate_term_makes_messages_smaller_from_an_equal_start(cache, tail):
    """Below 140 bytes both start with the coarsest code, so only the rate term differs."""
    shares = []  # of values that are not 0
    for message_bytes in (60.0, 140.0):
        recipe = replace(RECIPE, message_bytes=message_bytes, epochs=6)
        result = halves(cache, tail, recipe)
        with torch.no_grad():
            codes = result(batch(PIXELS))[0].round()
        shares.append(float((codes != 0).float().mean()))
    assert shares[0] < 0.95 * shares[1]


def test_steps_are_told_one_by_one(cache, tail):
    ticks: list[tuple[int, int]] = []
    recipe = replace(RECIPE, epochs=2, batch=64)
    halves(cache, tail, recipe, lambda done, total: ticks.append((done, total)))
    assert ticks == [(k, 4) for k in range(1, 5)]  # 160 photos are two whole batches


def test_fewer_photos_than_a_batch_still_train():
    small = cached(10, views=1)
    torch.manual_seed(3)
    ticks: list[tuple[int, int]] = []
    start = Tail()
    after = train_tail(start, [], small, RECIPE, lambda done, total: ticks.append((done, total)))
    assert ticks[-1] == (3, 3)
    assert all(torch.isfinite(v).all() for v in after.state_dict().values())


def test_distillation_alone_makes_cloud_half_follow_teacher(cache, tail):
    """With labels that say nothing, a strong teacher must still be learned from."""
    blind = FeatureCache(cache.views, np.zeros_like(cache.labels))
    taught = halves(blind, tail, replace(RECIPE, distillation=20.0))
    alone = halves(blind, tail, replace(RECIPE, distillation=0.0))
    with torch.no_grad():
        scores = [loss_and_accuracy(h(batch(PIXELS))[2])[1] for h in (taught, alone)]
    assert scores[0] > scores[1] + 0.3
