"""Small trained-looking torch halves, and photos of coloured blobs, for exporter tests."""

from __future__ import annotations

import functools

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from exporters.graph.cuts import choose, find_cuts, split
from exporters.graph.halves import CloudHalf, EndModel, ExitHead, Halves, Normalize
from exporters.graph.trace import trace
from tests.support.export import tiny_nets

SIZE = (32, 32)
CLASSES = 4
CUT_CHANNELS = 16
CHANNELS = 6
PER_CHANNEL = ((123.7, 116.3, 103.5), (58.4, 57.1, 57.4))  # what torchvision's models expect


def _conv(i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU6(),
    )


class Trunk(nn.Module):
    """Convolution, depthwise convolution and a residual sum: (N, 3, 32, 32) to (N, 16, 8, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _conv(3, 8, stride=2)
        self.depthwise = _conv(8, 8, stride=2, groups=8)
        self.project = nn.Sequential(nn.Conv2d(8, CUT_CHANNELS, 1), nn.BatchNorm2d(CUT_CHANNELS))
        self.residual = _conv(CUT_CHANNELS, CUT_CHANNELS)

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(self.depthwise(self.stem(x)))
        return x + self.residual(x)


class Tail(nn.Module):
    """(N, 16, 8, 8) to (N, 4)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = _conv(CUT_CHANNELS, 32, stride=2)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(self.mix(x), 1).flatten(1))


class Full(nn.Module):
    """The unsplit classifier, normalization included."""

    def __init__(self, normalize: nn.Module, trunk: nn.Module, tail: nn.Module) -> None:
        super().__init__()
        self.normalize, self.trunk, self.tail = normalize, trunk, tail

    def forward(self, pixels: Tensor) -> Tensor:
        return self.tail(self.trunk(self.normalize(pixels)))


def photos(n: int, seed: int = 0) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Blobs of one of four colours on noise: pixels (n, 32, 32, 3) and labels (n,)."""
    rng = np.random.default_rng(seed)
    colours = np.array([[220, 40, 40], [40, 200, 40], [40, 40, 220], [210, 200, 40]])
    labels = rng.integers(0, CLASSES, n)
    pixels = rng.integers(40, 160, (n, *SIZE, 3))
    for k, label in enumerate(labels):
        y, x = rng.integers(0, 14, 2)
        pixels[k, y : y + 18, x : x + 18] = colours[label] + rng.integers(-30, 30, 3)
    return np.clip(pixels, 0, 255).astype(np.uint8), labels.astype(np.int64)


def batch(pixels: NDArray[np.uint8]) -> Tensor:
    """Return photos as the float NCHW pixels that torch models take."""
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2).astype(np.float32))


@functools.cache
def trained(
    mean: tuple[float, ...] = (127.0, 127.0, 127.0),
    std: tuple[float, ...] = (128.0, 128.0, 128.0),
    *,
    feature_scale: float = 0.25,
    steps: int = 40,
) -> Halves:
    """Train on blobs for a second or two, once a process and normalization; do not change it."""
    torch.manual_seed(7)
    torch.set_num_threads(1)  # such small layers only wait for each other
    trunk = Trunk()
    head = ExitHead(CHANNELS, CLASSES, (8, 8), width=8)
    end = EndModel(
        Normalize(mean, std), trunk, nn.Conv2d(CUT_CHANNELS, CHANNELS, 1), head, feature_scale
    )
    cloud = CloudHalf(nn.Conv2d(CHANNELS, CUT_CHANNELS, 1), Tail())
    made = Halves(end, cloud)
    pixels, labels = photos(256, seed=1)
    x, y = batch(pixels), torch.from_numpy(labels)
    optimizer = torch.optim.Adam([*end.parameters(), *cloud.parameters()], 0.01)
    for step in range(steps):
        k = torch.arange(32) + 32 * (step % 8)
        _, exit_logits, cloud_logits = made(x[k])
        loss = F.cross_entropy(exit_logits, y[k]) + F.cross_entropy(cloud_logits, y[k])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    end.eval()
    cloud.eval()
    return made


def block_end(kind: str) -> EndModel:
    """Return an end model whose trunk ends with a block of `tests.support.export.tiny_nets`."""
    whole = trace(tiny_nets.net(kind), (3, *SIZE))
    cut = choose(find_cuts(whole), "block")
    trunk, _ = split(whole, cut)
    encode = nn.Conv2d(cut.shape[0], CHANNELS, 1)
    normalize = Normalize((127.0,) * 3, (64.0,) * 3)
    head = ExitHead(CHANNELS, CLASSES, cut.shape[1:], width=8)
    end = EndModel(normalize, trunk, encode, head, 0.125)
    x = batch(photos(64, seed=9)[0])
    with torch.no_grad():
        head.train()
        for _ in range(20):  # statistics of its own for the head
            end(x)
    return end.eval()


def levels_end(mean: tuple[float, ...], std: tuple[float, ...]) -> EndModel:
    """Return an end model whose features are the normalized pixels themselves."""
    encode = nn.Conv2d(3, 3, 1)
    with torch.no_grad():
        encode.weight.copy_(torch.eye(3)[:, :, None, None])
        encode.bias.zero_()
    head = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(3, CLASSES))
    return EndModel(Normalize(mean, std), nn.Identity(), encode, head, 0.02).eval()


def levels() -> NDArray[np.uint8]:
    """Return one picture (1, 16, 16, 3) that holds all 256 grey levels in every channel."""
    ramp = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    return np.stack([ramp, ramp[:, ::-1], ramp[:, :, ::-1]], axis=3)
