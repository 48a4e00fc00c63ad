"""Gates: figures that a finished export must reach, each measured by one small function.

A gate that could not be measured here is neither passed nor failed: ``ok`` is None, and the
sentence says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_kit.errors import GateError
from exporters.exported import Exported

__all__ = [
    "Gate",
    "full_parity",
    "int8_accuracy",
    "int8_agreement",
    "int8_size",
    "require",
    "split_parity",
    "tflite_agreement",
]

BATCH = 32


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
    """Raise on the first gate that failed.

    Raises:
        GateError: A figure misses its budget.
    """
    for gate in gates:
        if gate.ok is False:
            measured = float("nan") if gate.measured is None else gate.measured
            raise GateError(gate.name, measured, gate.budget, gate.sentence)


def full_parity(
    model: nn.Module, full: Exported, pixels: NDArray[np.uint8], *, budget: float = 1e-3
) -> Gate:
    """Compare the full torch model with its ONNX file: largest logit difference, decisions.

    Args:
        model: Float pixels (N, 3, H, W), 0 to 255, to logits.
        full: What `export_full` made of it.
        pixels: uint8 photos (N, H, W, 3).
        budget: Allowed difference as a share of the largest logit; compressed weights need more
            (about 0.02 for fp16, 0.2 for int8).
    """
    expected = _logits(model, pixels.transpose(0, 3, 1, 2).astype(np.float32))
    given = full(pixels)["logits"]
    difference = _relative(given, expected)
    alike = int((given.argmax(1) == expected.argmax(1)).sum())
    return Gate(
        "full model, torch against ONNX",
        difference,
        budget,
        difference <= budget,
        f"the logits of the full model differ by at most {difference:.2g} of the largest between "
        f"torch and ONNX (allowed {budget:.2g}); {alike} of {len(pixels)} decisions are alike",
    )


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
    return Gate(
        "split parity",
        difference,
        budget,
        difference <= budget,
        f"trunk and tail together differ from the full model by at most {difference:.2g} of the "
        f"largest logit (allowed {budget:.2g})",
    )


def int8_agreement(
    engine: Exported, twin: Exported, pixels: NDArray[np.uint8], *, budget: float = 0.95
) -> Gate:
    """Measure on how many photos the int8 end model decides like its float twin.

    Args:
        engine: The int8 end model.
        twin: From `export_end_float`.
        pixels: uint8 photos (N, H, W, 3).
        budget: Smallest allowed share.
    """
    share = _agreement(engine, twin, pixels)
    return Gate(
        f"int8 agreement, {_label(engine)}",
        share,
        budget,
        share >= budget,
        f"{_label(engine)} decides like its float twin on {share:.1%} of {len(pixels)} photos "
        f"(at least {budget:.1%} needed)",
    )


def int8_accuracy(
    engine: Exported,
    twin: Exported,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    *,
    budget: float = 0.01,
) -> Gate:
    """Measure the top-1 that the int8 end model loses against its float twin.

    Args:
        engine: The int8 end model.
        twin: From `export_end_float`.
        pixels: uint8 photos (N, H, W, 3).
        labels: (N,).
        budget: Largest allowed loss, as a share; a gain counts as a negative loss.
    """
    quantized = float((engine(pixels)["logits"].argmax(1) == labels).mean())
    real = float((twin(pixels)["logits"].argmax(1) == labels).mean())
    loss = real - quantized
    return Gate(
        f"int8 accuracy loss, {_label(engine)}",
        loss,
        budget,
        loss <= budget + 1e-9,
        f"{_label(engine)} has top-1 {quantized:.3f}, its float twin {real:.3f}, on "
        f"{len(pixels)} photos (a loss of at most {budget:.3f} is allowed)",
    )


def int8_size(engine: Exported, twin: Exported, *, budget: float = 3.5) -> Gate:
    """Measure how many times smaller the int8 file is than its float ONNX twin."""
    ratio = twin.entry.size / engine.entry.size
    return Gate(
        f"int8 size ratio, {_label(engine)}",
        ratio,
        budget,
        ratio >= budget,
        f"{_label(engine)} has {engine.entry.size:,} bytes, {ratio:.2f} times fewer than its "
        f"float twin (at least {budget:g} times needed)",
    )


def tflite_agreement(
    tflite: Exported, onnx: Exported, pixels: NDArray[np.uint8], *, budget: float = 0.97
) -> Gate:
    """Measure on how many photos the TFLite and the ONNX end model decide alike.

    Args:
        tflite: From `export_end_tflite`.
        onnx: From `export_end_onnx`.
        pixels: uint8 photos (N, H, W, 3).
        budget: Smallest allowed share.
    """
    share = _agreement(tflite, onnx, pixels)
    return Gate(
        "TFLite against ONNX",
        share,
        budget,
        share >= budget,
        f"{_label(tflite)} and {_label(onnx)} decide alike on {share:.1%} of {len(pixels)} "
        f"photos (at least {budget:.1%} needed)",
    )


def _label(file: Exported) -> str:
    kind = {"onnx": "ONNX", "tflite": "TFLite"}[file.entry.engine]
    return kind if file.entry.arch == "any" else f"{kind} for {file.entry.arch}"


def _agreement(a: Exported, b: Exported, pixels: NDArray[np.uint8]) -> float:
    return float((a(pixels)["logits"].argmax(1) == b(pixels)["logits"].argmax(1)).mean())


def _relative(given: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    scale = max(float(np.abs(expected).max()), 1e-12)
    return float(np.abs(given - expected).max()) / scale


def _logits(model: nn.Module, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    model.eval()
    rows: list[Tensor] = []
    with torch.no_grad():
        for start in range(0, len(inputs), BATCH):
            rows.append(model(torch.from_numpy(np.array(inputs[start : start + BATCH]))))
    return np.asarray(torch.cat(rows).numpy())
