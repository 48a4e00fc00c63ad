"""The end model as full int8 ONNX (QDQ)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exporters.exported import Exported

if TYPE_CHECKING:
    from torch import nn

__all__ = ["ARCHS", "export_end_onnx"]

ARCHS: tuple[str, ...] = ("x86_64", "aarch64")


def export_end_onnx(
    end: nn.Module,
    calibration: NDArray[np.uint8],
    path: Path,
    *,
    feature_scale: float,
    arch: str,
    cut: int = 0,
) -> Exported:
    """Quantize an end model for one architecture."""
    raise NotImplementedError
