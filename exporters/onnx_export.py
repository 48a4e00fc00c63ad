"""Float ONNX: the cloud half, the whole model, and the float twin of the end model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge_kit.tensors import TensorSpec
from exporters.exported import Exported

if TYPE_CHECKING:
    from torch import nn

__all__ = ["OPSET", "export_end_float", "export_full", "export_tail"]

OPSET = 17


def export_end_float(end: nn.Module, path: Path, *, size: tuple[int, int]) -> Exported:
    """Write the float twin of an end model: float pixels 0..255 -> features, logits."""
    raise NotImplementedError


def export_tail(
    cloud: nn.Module, features: TensorSpec, path: Path, *, weights: str = "fp32", cut: int = 0
) -> Exported:
    """Write a cloud half: raw int8 features (NCHW) -> float logits."""
    raise NotImplementedError


def export_full(
    model: nn.Module, path: Path, *, size: tuple[int, int], weights: str = "fp32"
) -> Exported:
    """Write the whole float model, normalization included: float pixels 0..255 -> logits."""
    raise NotImplementedError
