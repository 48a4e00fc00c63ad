"""Tiny classifiers, one for each kind of block that real networks are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SHAPE = (3, 16, 16)
CLASSES = 4
WIDTH = 8  # channels into and out of each block, on 8 x 8 positions

torch.set_num_threads(1)  # such small layers only wait for each other


def conv(i: int, o: int, k: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, norm, activation."""
    return nn.Sequential(
        nn.Conv2d(i, o, k, stride, k // 2, groups=groups, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU6(),
    )


class Residual(nn.Module):
    """Two convolutions and a skip connection (He et al., 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = conv(WIDTH, WIDTH), conv(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(self.one(x))


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project (Sandler et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        wide = 2 * WIDTH
        self.expand, self.depthwise = conv(WIDTH, wide, 1), conv(wide, wide, groups=wide)
        self.project = nn.Sequential(nn.Conv2d(wide, WIDTH, 1), nn.BatchNorm2d(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.project(self.depthwise(self.expand(x)))


class Shuffled(nn.Module):
    """Grouped convolution and a channel shuffle written with sizes (Zhang et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = conv(WIDTH, WIDTH, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.grouped(x)
        n, c, h, w = x.size(0), x.size(1), x.size(2), x.size(3)
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class Concatenated(nn.Module):
    """Two branches side by side (Szegedy et al., 2014)."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = conv(WIDTH, WIDTH // 2, 1), conv(WIDTH, WIDTH // 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.narrow(x), self.wide(x)], 1)


class SqueezeExcite(nn.Module):
    """A convolution whose channels are weighted by their own means (Hu et al., 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = conv(WIDTH, WIDTH)
        self.squeeze, self.excite = nn.Conv2d(WIDTH, 2, 1), nn.Conv2d(2, WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x)
        gate = self.excite(torch.relu(self.squeeze(x.mean((2, 3), keepdim=True))))
        return x * torch.sigmoid(gate)


BLOCKS: dict[str, type[nn.Module]] = {
    "residual": Residual,
    "inverted-residual": InvertedResidual,
    "shuffled": Shuffled,
    "concatenated": Concatenated,
    "squeeze-excite": SqueezeExcite,
}

# Multiply-accumulates of one sample, counted by hand: outputs x inputs x kernel x positions.
STEM_MACS = 8 * 3 * 9 * 64
DEEP_MACS = 12 * 8 * 9 * 16
DENSE_MACS = 12 * CLASSES
BLOCK_MACS = {
    "residual": 2 * (8 * 8 * 9 * 64),
    "inverted-residual": 16 * 8 * 64 + 16 * 1 * 9 * 64 + 8 * 16 * 64,
    "shuffled": 8 * 4 * 9 * 64,
    "concatenated": 4 * 8 * 64 + 4 * 8 * 9 * 64,
    "squeeze-excite": 8 * 8 * 9 * 64 + 2 * 8 + 8 * 2,
}


class Net(nn.Module):
    """Stem, one block, a strided convolution, pooling, a dense layer."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.stem, self.block, self.deep = conv(3, WIDTH, stride=2), block, conv(WIDTH, 12, 3, 2)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.deep(self.block(self.stem(x))))
        return self.fc(x.view(x.size(0), -1))


def settle(model: nn.Module, shape: tuple[int, int, int] = SHAPE) -> nn.Module:
    """Give the norms weights and statistics of their own, so that parity means something."""
    torch.manual_seed(0)
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.weight.uniform_(0.5, 1.5)
                layer.bias.normal_(0, 0.3)
        for _ in range(3):
            model.train()(torch.randn(8, *shape))
    return model.eval()


def net(kind: str) -> nn.Module:
    """Return a settled `Net` with the block of that name."""
    torch.manual_seed(1)
    return settle(Net(BLOCKS[kind]()))


def images(n: int, seed: int = 2, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    """Return (n, *shape) normalized images."""
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))
