"""Tensors as a manifest and a message describe them: shape, layout, dtype, scale, zero point."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["DTYPES", "LAYOUTS", "TensorSpec", "dequantize", "quantize", "to_layout"]

DTYPES: tuple[str, ...] = ("int8", "uint8", "float32", "int32", "float16")
LAYOUTS: tuple[str, ...] = ("NCHW", "NHWC", "NC")


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model, batch dimension left out.

    Attributes:
        name: The signature name; tensors are addressed by it, never by position.
        shape: Dimensions after the batch, in the order of ``layout``.
        layout: ``NCHW``, ``NHWC`` or ``NC``.
        dtype: A name from `DTYPES`.
        scale: Quantization step; real = (value - zero_point) * scale. 1.0 for floats.
        zero_point: Quantized value that stands for 0.0.
    """

    name: str
    shape: tuple[int, ...]
    layout: str
    dtype: str
    scale: float = 1.0
    zero_point: int = 0

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout {self.layout!r} is not one of {LAYOUTS}")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is not one of {DTYPES}")
        if len(self.shape) != len(self.layout) - 1 or any(d < 1 for d in self.shape):
            raise ValueError(f"shape {self.shape} does not fit layout {self.layout}")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"scale {self.scale} is not a positive number")

    @property
    def size(self) -> int:
        """Number of values in one sample."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of one uncompressed sample."""
        return self.size * np.dtype(self.dtype).itemsize


def quantize(values: NDArray[np.float32], spec: TensorSpec) -> NDArray[Any]:
    """Round reals to the integers of `spec`, half to even, saturating."""
    info = np.iinfo(spec.dtype)
    # The division is float32, as engines do it; float64 afterwards holds the ends of int32.
    rounded = np.rint(values / np.float32(spec.scale)).astype(np.float64)
    scaled = rounded + spec.zero_point
    return np.asarray(np.clip(scaled, info.min, info.max).astype(spec.dtype))


def dequantize(values: NDArray[Any], spec: TensorSpec) -> NDArray[np.float32]:
    """Turn integers of `spec` back into reals; floats pass through as float32."""
    if spec.dtype in ("float32", "float16"):
        return values.astype(np.float32, copy=False)
    return (values.astype(np.float32) - np.float32(spec.zero_point)) * np.float32(spec.scale)


def to_layout(values: NDArray[Any], have: str, want: str) -> NDArray[Any]:
    """Transpose a batch (N first) between NCHW and NHWC; a view where nothing moves."""
    if have == want:
        return values
    if (have, want) == ("NHWC", "NCHW"):
        return np.ascontiguousarray(values.transpose(0, 3, 1, 2))
    if (have, want) == ("NCHW", "NHWC"):
        return np.ascontiguousarray(values.transpose(0, 2, 3, 1))
    raise ValueError(f"no transpose from {have} to {want}")
