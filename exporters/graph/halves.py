"""The two halves of a split classifier, and the narrow bottleneck between them.

    pixels -> normalize -> trunk -> encode -> features ==> decode -> tail -> logits   (cloud)
                                       └──> exit head -> logits                       (device)

`encode` and `decode` are 1x1 convolutions. Features are used only after rounding to whole
multiples of ``feature_scale``: the same few levels that the int8 engine emits, so what the exit
head and the tail learned on is what they meet in the field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that the field uses)

__all__ = ["CloudHalf", "EndModel", "ExitHead", "Halves", "Normalize", "round_features"]

INT8_MIN, INT8_MAX = -128, 127


class _RoundStraightThrough(torch.autograd.Function):
    """Round forward, identity backward (Bengio et al., 2013)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def round_features(features: Tensor, scale: float) -> Tensor:
    """Round to the int8 levels of `scale` and back; gradients pass straight through."""
    codes = _RoundStraightThrough.apply(features / scale)  # type: ignore[no-untyped-call]
    return codes.clamp(INT8_MIN, INT8_MAX) * scale  # type: ignore[no-any-return]


class Normalize(nn.Module):
    """Subtract `mean` and divide by `std`, both per channel and in pixel units (0 to 255)."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    @property
    def uniform(self) -> bool:
        """True when all channels share one mean and one std."""
        return bool((self.mean == self.mean.flatten()[0]).all()) and bool(
            (self.std == self.std.flatten()[0]).all()
        )

    def forward(self, pixels: Tensor) -> Tensor:
        """(N, C, H, W) pixels to the network's input range, same shape."""
        return (pixels - self.mean) / self.std


class ExitHead(nn.Module):
    """A small classifier on bottleneck features: two strided stages, pooled, one dense layer.

    Args:
        channels: Bottleneck channels.
        classes: Number of classes.
        size: Height and width of the features; pooling uses a fixed kernel, since adaptive
            pooling leaves float islands in both engines.
        width: Channels of the first stage; later ones have twice as many.
    """

    def __init__(self, channels: int, classes: int, size: tuple[int, int], width: int = 64) -> None:
        super().__init__()
        strides = [2 if min(size) >= 8 else 1, 2 if min(size) >= 16 else 1]
        self.stem = _conv(channels, width, 1)
        self.down = _conv(width, 2 * width, strides[0])
        self.mix = _conv(2 * width, 2 * width, strides[1])
        self.refine = _conv(2 * width, 2 * width, 1)
        for stride in strides:
            size = ((size[0] - 1) // stride + 1, (size[1] - 1) // stride + 1)
        self.pool = nn.AvgPool2d(size)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, features: Tensor) -> Tensor:
        """(N, channels, h, w) to (N, classes)."""
        x = self.mix(self.down(self.stem(features)))
        x = x + self.refine(x)
        return self.fc(self.drop(self.pool(x).flatten(1)))  # type: ignore[no-any-return]


def _conv(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class EndModel(nn.Module):
    """What the board runs: pixels to bottleneck features and early-exit logits.

    Attributes:
        normalize: Pixel units to the trunk's input.
        trunk: Shared shallow layers, frozen.
        encode: 1x1 convolution to the bottleneck.
        head: The exit.
        feature_scale: Quantization step of the features.
    """

    def __init__(
        self,
        normalize: Normalize,
        trunk: nn.Module,
        encode: nn.Conv2d,
        head: nn.Module,
        feature_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.normalize = normalize
        self.trunk = trunk
        self.encode = encode
        self.head = head
        self.feature_scale = feature_scale

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Run the float model; features leave unrounded, the head sees them rounded.

        Args:
            pixels: (N, 3, H, W), 0 to 255.

        Returns:
            Features (N, c, h, w) and logits (N, classes).
        """
        features = self.encode(self.trunk(self.normalize(pixels)))
        return features, self.head(round_features(features, self.feature_scale))


class CloudHalf(nn.Module):
    """What the worker runs: dequantized features to logits.

    Attributes:
        decode: 1x1 convolution back to the trunk's channels.
        tail: The rest of the full model.
    """

    def __init__(self, decode: nn.Conv2d, tail: nn.Module) -> None:
        super().__init__()
        self.decode = decode
        self.tail = tail

    def forward(self, features: Tensor) -> Tensor:
        """(N, c, h, w) rounded features to (N, classes) logits."""
        return self.tail(self.decode(features))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Halves:
    """A trained split: callable on pixels, so that a parity check is one line."""

    end: EndModel
    cloud: CloudHalf

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return features, exit logits and cloud logits of (N, 3, H, W) pixels."""
        features, exit_logits = self.end(pixels)
        rounded = round_features(features, self.end.feature_scale)
        return features, exit_logits, self.cloud(rounded)


def principal_bottleneck(
    activations: Tensor, channels: int, bits: float
) -> tuple[nn.Conv2d, nn.Conv2d]:
    """Return encode and decode convolutions that start as PCA.

    Args:
        activations: Trunk outputs, (N, C, h, w); a few hundred samples suffice.
        channels: Bottleneck width, at most C.
        bits: Entropy of a rounded feature value to start from; sets the gain.

    Returns:
        ``encode`` (C to channels) centres and projects; ``decode`` is its pseudo-inverse.
    """
    width = activations.shape[1]
    flat = activations.permute(0, 2, 3, 1).reshape(-1, width).double()
    mean = flat.mean(0)
    values, vectors = torch.linalg.eigh(torch.cov((flat - mean).T))
    basis = vectors[:, -channels:].flip(1).T
    spread = values[-channels:].flip(0).clamp_min(1e-12).sqrt()
    # Square roots flatten the spectrum: weak components keep a few levels instead of none.
    flatten = (spread[0] / spread).sqrt() / spread[0]
    projected = (flat[:: max(1, len(flat) // 20_000)] - mean) @ (basis * flatten[:, None]).T
    gain = flatten * _gain_for(projected, bits)
    encode = nn.Conv2d(width, channels, 1)
    decode = nn.Conv2d(channels, width, 1)
    assert encode.bias is not None and decode.bias is not None
    with torch.no_grad():
        weight = basis * gain[:, None]
        encode.weight.copy_(weight[:, :, None, None])
        encode.bias.copy_(-(weight @ mean))
        decode.weight.copy_((basis / gain[:, None]).T[:, :, None, None])
        decode.bias.copy_(mean)
    return encode, decode


def _gain_for(values: Tensor, bits: float) -> float:
    """Bisect the gain at which rounded `values` have an entropy of `bits`."""
    low, high = 1e-3, 1e3
    for _ in range(40):
        middle = math.sqrt(low * high)
        _codes, counts = np.unique(np.rint(values.numpy() * middle), return_counts=True)
        p = counts / counts.sum()
        low, high = (low, middle) if -(p * np.log2(p)).sum() > bits else (middle, high)
    return low


def laplace_bits(features: Tensor, scale: float, spread: Tensor) -> Tensor:
    """Return the mean bits per value under one discretized Laplace law for all channels.

    One law for all, because deflate codes a message with one table. Uniform noise stands in for
    rounding, so that the estimate has a gradient (Ballé et al., 2017).

    Args:
        features: Unrounded bottleneck features.
        scale: Quantization step.
        spread: Scalar, the law's scale in steps; learned along.
    """
    noisy = features / scale + torch.rand_like(features) - 0.5
    b = F.softplus(spread) + 0.05

    def cdf(x: Tensor) -> Tensor:
        return 0.5 + 0.5 * x.sign() * (1 - torch.exp(-x.abs() / b))

    mass = (cdf(noisy + 0.5) - cdf(noisy - 0.5)).clamp_min(1e-9)
    return -mass.log2().mean()
