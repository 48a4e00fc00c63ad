"""Train the bottleneck, the exit head and the adapted tail on cached trunk features.

The trunk stays frozen, so its features are computed once (see `exporters.data.features`) and each
epoch costs only the tail. Everything is learned on rounded features: an int8 code that few levels
dominate is a code that deflate packs well, and a rate term pays for it (Ballé et al., 2017).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from edge_kit.codec import compress
from exporters.graph.halves import (
    INT8_MAX,
    INT8_MIN,
    CloudHalf,
    EndModel,
    ExitHead,
    Halves,
    Normalize,
    laplace_bits,
    principal_bottleneck,
    round_features,
)
from exporters.progress import Tick
from exporters.train.allocator import keep_freed_memory

__all__ = [
    "FeatureCache",
    "TrainingRecipe",
    "fitting_channels",
    "train_halves",
    "train_tail",
]

_SAMPLES_FOR_PCA = 400
_DISTILLATION_TEMPERATURE = 2.0  # Hinton et al., 2015
# What a message costs beyond its entropy: header and CRC, deflate's own code table.
_FRAME_BYTES = 57
_MESSAGE_OVERHEAD = _FRAME_BYTES + 70


@dataclass(frozen=True)
class TrainingRecipe:
    """How to train.

    Attributes:
        channels: Bottleneck width.
        message_bytes: Mean message size to aim for, header included.
        epochs: Passes over the training split for bottleneck, exit and tail together.
        tail_epochs: Passes for a tail whose classifier is fresh (`train_tail`).
        batch: Samples a step.
        learning_rate: Peak of a cosine schedule, SGD with Nesterov momentum 0.9.
        distillation: Weight of the full model's logits against the labels.
        exit_weight: Weight of the exit's loss against the cloud's.
        exit_width: Channels of the exit head's first stage.
        seed: Of everything random.
    """

    channels: int = 32
    message_bytes: float = 650.0
    epochs: int = 8
    tail_epochs: int = 4
    batch: int = 32
    learning_rate: float = 0.02
    distillation: float = 1.0
    exit_weight: float = 0.5
    exit_width: int = 64
    seed: int = 0


@dataclass(frozen=True)
class FeatureCache:
    """Trunk features of the training split.

    Attributes:
        views: One array (N, C, h, w), float16, a view; the first is the plain one.
        labels: (N,) class indices.
    """

    views: Sequence[NDArray[np.float16]]
    labels: NDArray[np.int64]

    def batch(self, views: NDArray[np.int64], rows: NDArray[np.int64]) -> Tensor:
        """Return (len(rows), C, h, w) float32, one view a row."""
        picked = np.stack([self.views[v][r] for v, r in zip(views, rows, strict=True)])
        x = torch.from_numpy(picked.astype(np.float32))
        return x.contiguous(memory_format=torch.channels_last)


class _Bottlenecked(nn.Module):
    """Everything behind the trunk, as one module to optimize."""

    def __init__(
        self, encode: nn.Conv2d, decode: nn.Conv2d, head: nn.Module, tail: nn.Module
    ) -> None:
        super().__init__()
        self.encode = encode
        self.decode = decode
        self.head = head
        self.tail = tail
        self.spread = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.encode(x)
        rounded = round_features(features, 1.0)
        return features, self.head(rounded), self.tail(self.decode(rounded))


class _Average:
    """Exponential moving average of a module's parameters and buffers (Polyak averaging)."""

    def __init__(self, module: nn.Module) -> None:
        self.module = copy.deepcopy(module)
        self._steps = 0

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        self._steps += 1
        decay = min(0.995, (1 + self._steps) / (10 + self._steps))
        pairs = zip(self.module.state_dict().values(), module.state_dict().values(), strict=True)
        for mine, theirs in pairs:
            if mine.dtype.is_floating_point:
                mine.mul_(decay).add_(theirs, alpha=1 - decay)
            else:
                mine.copy_(theirs)


class _Rate:
    """Steer the weight of the rate term until real messages have the size that was asked for."""

    def __init__(self, target_bytes: float) -> None:
        self.target = target_bytes
        self.weight = 0.15
        self._mean: float | None = None

    def update(self, features: Tensor) -> None:
        """Pack a few samples as the device would; `features` has step 1."""
        codes = features.detach()[:8].round().clamp(INT8_MIN, INT8_MAX).to(torch.int8)
        packed = [len(compress(code.contiguous().numpy().tobytes())[1]) for code in codes]
        size = sum(packed) / len(packed) + _FRAME_BYTES
        self._mean = size if self._mean is None else 0.9 * self._mean + 0.1 * size
        error = 4 * math.log(self._mean / self.target)
        self.weight *= math.exp(0.02 * max(-1.0, min(1.0, error)))
        self.weight = min(1.0, max(1e-3, self.weight))


def fitting_channels(message_bytes: float, positions: int) -> int:
    """Return the bottleneck width at which a message affords about 2.6 bits a value.

    Fewer bits waste deflate, which spends at least one; more bits are levels that a further
    channel would use better.

    Args:
        message_bytes: Mean message, header included.
        positions: Height times width of the features.
    """
    return max(4, round((message_bytes - _MESSAGE_OVERHEAD) * 8 / (2.6 * positions)))


def train_tail(
    tail: nn.Module,
    fresh: Sequence[nn.Parameter],
    cache: FeatureCache,
    recipe: TrainingRecipe,
    tick: Tick,
) -> nn.Module:
    """Fine-tune a pretrained tail with a fresh classifier on unbottlenecked features.

    Args:
        tail: (N, C, h, w) to (N, classes); trained in place as the starting point.
        fresh: Parameters that start from nothing and learn faster.
        cache: Training split.
        recipe: See `TrainingRecipe`.
        tick: Told after each step.

    Returns:
        The averaged tail, in eval mode.
    """
    groups = _groups(tail, {id(p): 1.0 for p in fresh})

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(tail(x), labels, label_smoothing=0.1)

    average = _optimize(tail, groups, loss, cache, recipe, recipe.tail_epochs, tick)
    average.eval()
    return average  # type: ignore[no-any-return]


def train_halves(
    normalize: Normalize,
    trunk: nn.Module,
    tail: nn.Module,
    cache: FeatureCache,
    classes: int,
    recipe: TrainingRecipe,
    tick: Tick,
) -> Halves:
    """Train encode, decode and exit, and adapt the tail, against the full model and the labels.

    Args:
        normalize: Pixel units to the trunk's input.
        trunk: Frozen shallow layers; only carried into the result.
        tail: The full model's own tail, trained; it is copied, and teaches.
        cache: The trunk's features of the training split.
        classes: Number of classes.
        recipe: See `TrainingRecipe`.
        tick: Told after each step.

    Returns:
        Both halves in eval mode, features with step 1.0.
    """
    torch.manual_seed(recipe.seed)
    teacher = tail.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rows = np.arange(len(cache.labels))[:: max(1, len(cache.labels) // _SAMPLES_FOR_PCA)]
    sample = cache.batch(np.zeros_like(rows), rows)
    size = (sample.shape[2], sample.shape[3])
    values = recipe.channels * size[0] * size[1]
    bits = max(0.5, (recipe.message_bytes - _MESSAGE_OVERHEAD) * 8 / values)
    encode, decode = principal_bottleneck(sample, recipe.channels, bits)
    head = ExitHead(recipe.channels, classes, size, recipe.exit_width)
    net = _Bottlenecked(encode, decode, head, copy.deepcopy(tail))
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    rate = _Rate(recipe.message_bytes)

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            taught = teacher(x)
        features, exit_logits, cloud_logits = net(x)
        bits = laplace_bits(features, 1.0, net.spread)
        rate.update(features)
        cloud = _taught(cloud_logits, labels, taught, recipe.distillation)
        early = _taught(exit_logits, labels, taught, recipe.distillation)
        return cloud + recipe.exit_weight * early + rate.weight * bits

    speeds = {id(p): 2.5 for p in head.parameters()}
    speeds |= {id(p): 0.25 for p in [*encode.parameters(), *decode.parameters(), net.spread]}
    groups = _groups(net, speeds)
    average = _optimize(net, groups, loss, cache, recipe, recipe.epochs, tick)
    average.eval().to(memory_format=torch.contiguous_format)
    end = EndModel(normalize, trunk, average.encode, average.head, 1.0)
    return Halves(end.eval(), CloudHalf(average.decode, average.tail).eval())


def _optimize(
    module: Any,
    groups: list[dict[str, Any]],
    loss: Callable[[Tensor, Tensor], Tensor],
    cache: FeatureCache,
    recipe: TrainingRecipe,
    epochs: int,
    tick: Tick,
) -> Any:
    """Run SGD with a cosine schedule over random views; return the averaged module."""
    keep_freed_memory()
    torch.manual_seed(recipe.seed)
    random = np.random.default_rng(recipe.seed)
    module.to(memory_format=torch.channels_last).train()
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d) and norm.momentum is not None:
            # Few steps: statistics must follow the weights faster than in a long pretraining.
            norm.momentum = max(norm.momentum, 0.05)
    average = _Average(module)
    optimizer = torch.optim.SGD(groups, recipe.learning_rate, momentum=0.9, nesterov=True)
    count = len(cache.labels)
    batch = min(recipe.batch, count)
    steps = epochs * (count // batch)
    step = 0
    for _epoch in range(epochs):
        order = random.permutation(count)
        views = random.integers(0, len(cache.views), count)
        for start in range(0, count - batch + 1, batch):
            rows = order[start : start + batch]
            shape = min(1.0, (step + 1) / 60) * 0.5 * (1 + math.cos(math.pi * step / steps))
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * group["speed"] * shape
            value = loss(cache.batch(views[rows], rows), torch.from_numpy(cache.labels[rows]))
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(module.parameters(), 5.0)
            optimizer.step()
            average.update(module)
            step += 1
            tick(step, steps)
    return average.module


def _groups(module: nn.Module, speeds: dict[int, float]) -> list[dict[str, Any]]:
    """One parameter group a learning speed; only matrices and kernels decay."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for p in module.parameters():
        speed = speeds.get(id(p), 1.0)
        decay = 1e-4 if p.ndim > 1 and speed >= 1 else 0.0
        groups.setdefault((speed, decay), []).append(p)
    return [
        {"params": params, "speed": speed, "weight_decay": decay}
        for (speed, decay), params in groups.items()
    ]


def _taught(logits: Tensor, labels: Tensor, teacher: Tensor, weight: float) -> Tensor:
    """Mean of the labels' and the teacher's loss, the latter counted `weight` times."""
    hard = F.cross_entropy(logits, labels, label_smoothing=0.1)
    t = _DISTILLATION_TEMPERATURE
    soft = F.kl_div(F.log_softmax(logits / t, 1), F.softmax(teacher / t, 1), reduction="batchmean")
    return (hard + weight * t * t * soft) / (1 + weight)
