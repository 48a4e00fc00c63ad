"""Assert that a quantized model computes in integers only."""

from __future__ import annotations

from pathlib import Path

__all__ = ["assert_all_int8"]


def assert_all_int8(path: Path) -> None:
    """Check an ``.onnx`` or ``.tflite`` end model for float islands.

    Raises:
        ExportError: A tensor is computed in float; the message names it.
    """
    raise NotImplementedError
