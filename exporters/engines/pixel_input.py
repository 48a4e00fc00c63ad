"""How raw pixels enter an integer model: normalization folded into the input's quantization.

Where all channels share one mean and std, ``(pixel - mean) / std`` *is* a dequantization with
scale ``1 / std`` and zero point ``mean``, so it costs nothing (a mean between two grey levels is
rounded: at most half a level). Per-channel normalization has no such form, and cannot move into
the first convolution either, whose padding must stay the mean colour: it becomes a depthwise 1x1
convolution on raw pixels, which both engines run in integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

if TYPE_CHECKING:
    from exporters.graph.halves import EndModel, Normalize

__all__ = ["IntegerEnd", "PixelInput", "pixel_input"]


@dataclass(frozen=True)
class PixelInput:
    """The front of an integer model.

    Attributes:
        module: What remains to be computed on dequantized pixels.
        scale: Quantization step of the image.
        zero_point: Its zero point for uint8 pixels; 128 less for int8.
    """

    module: nn.Module
    scale: float
    zero_point: int

    def real(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return what the engine takes uint8 pixels for, layout kept."""
        shifted = pixels.astype(np.float32) - np.float32(self.zero_point)
        return shifted * np.float32(self.scale)


class IntegerEnd(nn.Module):
    """What is quantized: an end model without rounding, which quantization itself brings.

    Args:
        end: The trained end model.
        pixels: How pixels enter it.
    """

    def __init__(self, end: EndModel, pixels: PixelInput) -> None:
        super().__init__()
        self.adapt = pixels.module
        self.trunk, self.encode, self.head = end.trunk, end.encode, end.head

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """(N, C, H, W) real pixels to features (N, c, h, w) and logits (N, classes)."""
        features = self.encode(self.trunk(self.adapt(image)))
        return features, self.head(features)


def pixel_input(normalize: Normalize) -> PixelInput:
    """Choose the form of a normalization, given in pixel units."""
    mean = normalize.mean.detach().flatten().double()
    std = normalize.std.detach().flatten().double()
    zero_point = round(float(mean[0]))
    if normalize.uniform and 0 <= zero_point <= 255:
        return PixelInput(nn.Identity(), float(np.float32(1 / float(std[0]))), zero_point)
    channels = len(mean)
    affine = nn.Conv2d(channels, channels, 1, groups=channels)
    with torch.no_grad():
        affine.weight.copy_((1 / std).view(-1, 1, 1, 1))
        affine.bias.copy_(-mean / std)  # type: ignore[union-attr]
    return PixelInput(affine, 1.0, 0)
