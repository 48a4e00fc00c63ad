"""Gates: figures that a finished export must reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from exporters.exported import Exported

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "Gate",
    "full_parity",
    "int8_accuracy",
    "int8_agreement",
    "int8_size",
    "require",
    "split_parity",
    "tflite_agreement",
    "tflite_loads",
]


@dataclass(frozen=True)
class Gate:
    """One measured figure and its budget.

    Attributes:
        name: Such as ``int8 accuracy``.
        measured: What was measured; None when it could not be checked here.
        budget: What is allowed.
        ok: True passed, False failed, None not checked.
        sentence: All of that for people.
    """

    name: str
    measured: float | None
    budget: float
    ok: bool | None
    sentence: str

    def to_json(self) -> dict[str, Any]:
        """Return the form that the manifest's figures hold."""
        return {
            "name": self.name,
            "measured": self.measured,
            "budget": self.budget,
            "ok": self.ok,
            "sentence": self.sentence,
        }


def require(gates: Iterable[Gate]) -> None:
    """Raise on the first failed gate.

    Raises:
        GateError: A figure misses its budget.
    """
    raise NotImplementedError


def full_parity(
    model: nn.Module, full: Exported, pixels: NDArray[np.uint8], *, budget: float = 1e-3
) -> Gate:
    """Full torch model (pixels -> logits) against its ONNX file: largest logit difference."""
    raise NotImplementedError


def split_parity(
    full: nn.Module,
    trunk: nn.Module,
    tail: nn.Module,
    inputs: NDArray[np.float32],
    *,
    budget: float = 1e-4,
) -> Gate:
    """Trunk then tail against the full model on the same inputs, the bottleneck left out."""
    raise NotImplementedError


def int8_agreement(
    engine: Exported, twin: Exported, pixels: NDArray[np.uint8], *, budget: float = 0.95
) -> Gate:
    """Share of photos on which int8 end model and float twin decide alike."""
    raise NotImplementedError


def int8_accuracy(
    engine: Exported,
    twin: Exported,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    budget: float = 0.01,
) -> Gate:
    """Top-1 that the int8 end model loses against its float twin."""
    raise NotImplementedError


def int8_size(engine: Exported, twin: Exported, *, budget: float = 3.5) -> Gate:
    """How many times smaller the int8 file is than its float ONNX twin."""
    raise NotImplementedError


def tflite_agreement(
    tflite: Exported, onnx: Exported, pixels: NDArray[np.uint8], *, budget: float = 0.97
) -> Gate:
    """Share of photos on which the two engines decide alike."""
    raise NotImplementedError


def tflite_loads(tflite: Exported) -> tuple[Gate, Gate]:
    """Load and run the file in tflite-runtime and in LiteRT, each in its own process."""
    raise NotImplementedError
