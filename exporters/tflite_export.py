"""The end model as full int8 TFLite."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from exporters.exported import Exported

if TYPE_CHECKING:
    from torch import nn

__all__ = ["export_end_tflite"]


def export_end_tflite(
    end: nn.Module,
    calibration: NDArray[np.uint8],
    path: Path,
    *,
    feature_scale: float,
    cut: int = 0,
) -> Exported:
    """Quantize an end model for TFLite, any architecture."""
    raise NotImplementedError
