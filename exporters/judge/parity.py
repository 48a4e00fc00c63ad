"""Gates that compare one float model in two forms: torch and ONNX, whole and split.

What is judged against the float files (int8 accuracy, decisions) is worth no more than they are.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from exporters.engines.exported import Exported
from exporters.engines.onnx_export import export_full
from exporters.graph.halves import Halves
from exporters.judge.gates import Gate

__all__ = ["end_parity", "full_parity", "split_parity", "stored_full", "tail_parity"]

BATCH = 32
FLOAT = 1e-3
# A rounding that falls the other way, one step of one feature, moves the exit's logits.
ROUNDED = 0.02
# Weights in fewer bits move the logits; the sentences tell what decisions do.
STORED = {"fp32": FLOAT, "fp16": 0.02, "int8": 0.2}


def full_parity(
    model: nn.Module, pixels: NDArray[np.uint8], *, size: tuple[int, int], budget: float = FLOAT
) -> Gate:
    """Compare the full torch model with the ONNX file that it becomes, weights as they are.

    Args:
        model: Float pixels (N, 3, H, W), 0 to 255, to logits.
        pixels: uint8 photos (N, H, W, 3).
        size: Height and width.
        budget: Allowed difference as a share of the largest logit.
    """
    with TemporaryDirectory(prefix="edge-kit-parity-") as work:
        given = export_full(model, Path(work) / "full.onnx", size=size)(pixels)["logits"]
    return _gate("full model, torch against ONNX", given, _logits(model, _images(pixels)), budget)


def stored_full(
    model: nn.Module, full: Exported, pixels: NDArray[np.uint8], *, storage: str
) -> Gate:
    """Compare the full torch model with the ONNX file that ships, weights as they are stored.

    Args:
        model: As in `full_parity`.
        full: What `export_full` made of it.
        pixels: uint8 photos (N, H, W, 3).
        storage: ``fp32``, ``fp16`` or ``int8``; sets the allowed difference.
    """
    given, expected = full(pixels)["logits"], _logits(model, _images(pixels))
    return _gate(f"full model, stored as {storage}", given, expected, STORED[storage])


def end_parity(halves: Halves, twin: Exported, pixels: NDArray[np.uint8]) -> Gate:
    """Compare the end model in torch with its float twin, which the int8 files are judged by.

    Args:
        halves: Trained.
        twin: What `export_end_float` made of them.
        pixels: uint8 photos (N, H, W, 3).
    """
    expected = _logits(lambda images: halves.end(images)[1], _images(pixels))
    return _gate("end model, torch against ONNX", twin(pixels)["logits"], expected, ROUNDED)


def tail_parity(
    halves: Halves, tail: Exported, features: NDArray[np.int8], *, storage: str
) -> Gate:
    """Compare the cloud half in torch with the ONNX file that ships.

    Args:
        halves: Trained.
        tail: What `export_tail` made of them.
        features: As an end model sends them, (N, c, h, w).
        storage: As in `stored_full`.
    """
    real = features.astype(np.float32) * np.float32(halves.end.feature_scale)
    given, expected = tail(features)["logits"], _logits(halves.cloud, real)
    return _gate("cloud half, torch against ONNX", given, expected, STORED[storage])


def split_parity(
    full: nn.Module,
    trunk: nn.Module,
    tail: nn.Module,
    inputs: NDArray[np.float32],
    *,
    budget: float = 1e-4,
) -> Gate:
    """Compare trunk then tail with the full model on the same inputs, the bottleneck left out.

    Args:
        full: The unsplit torch model.
        trunk: Its part before the cut.
        tail: Its part after the cut.
        inputs: What `full` and `trunk` take, (N, C, H, W).
        budget: Allowed difference as a share of the largest logit.
    """
    expected = _logits(full, inputs)
    given = _logits(nn.Sequential(trunk, tail), inputs)
    difference = _relative(given, expected)
    return Gate.at_most(
        "split parity",
        difference,
        budget,
        f"trunk and tail together differ from the full model by at most {difference:.2g} of the "
        f"largest logit (allowed {budget:.2g})",
    )


def _gate(
    name: str, given: NDArray[np.float32], expected: NDArray[np.float32], budget: float
) -> Gate:
    difference = _relative(given, expected)
    alike = int((given.argmax(1) == expected.argmax(1)).sum())
    return Gate.at_most(
        name,
        difference,
        budget,
        f"{name}: the logits differ by at most {difference:.2g} of the largest (allowed "
        f"{budget:.2g}); {alike} of {len(given)} decisions are alike",
    )


def _images(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    return pixels.transpose(0, 3, 1, 2).astype(np.float32)


def _relative(given: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    scale = max(float(np.abs(expected).max()), 1e-12)
    return float(np.abs(given - expected).max()) / scale


def _logits(model: Callable[[Tensor], Tensor], inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.no_grad():
        batches = torch.split(torch.from_numpy(np.array(inputs)), BATCH)
        return np.asarray(torch.cat([model(batch) for batch in batches]).numpy())
