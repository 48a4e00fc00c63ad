"""Store the weights of a float ONNX model in fewer bytes; it still computes in float32."""

from __future__ import annotations

from pathlib import Path

__all__ = ["STORAGE", "compress_weights"]

STORAGE: tuple[str, ...] = ("fp32", "fp16", "int8")


def compress_weights(path: Path, storage: str) -> None:
    """Rewrite the model at `path` in place with its weights stored as `storage`."""
    raise NotImplementedError
