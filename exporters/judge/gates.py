"""Gates: figures that a finished export must reach, each measured by one small function.

A gate that could not be measured here is neither passed nor failed: ``ok`` is None, and the
sentence says why.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import GateError
from edge_kit.exits import softmax
from exporters.engines.exported import Exported

__all__ = [
    "BORDERLINE_MARGIN",
    "Gate",
    "cloud_agreement",
    "int8_accuracy",
    "int8_agreement",
    "int8_size",
    "require",
    "tflite_agreement",
]

# Where the two largest probabilities are closer than this, a photo is borderline: any rounding may
# change its class, which says nothing of the engine.
BORDERLINE_MARGIN = 0.1


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

    @classmethod
    def at_least(cls, name: str, measured: float, budget: float, sentence: str) -> Gate:
        """Pass when the figure reaches the budget."""
        return cls(name, measured, budget, measured >= budget, sentence)

    @classmethod
    def at_most(cls, name: str, measured: float, budget: float, sentence: str) -> Gate:
        """Pass when the figure stays within the budget, rounding aside."""
        return cls(name, measured, budget, measured <= budget + 1e-9, sentence)


def require(gates: Iterable[Gate]) -> None:
    """Raise on the first gate that failed.

    Raises:
        GateError: A figure misses its budget.
    """
    for gate in gates:
        if gate.ok is False:
            measured = float("nan") if gate.measured is None else gate.measured
            raise GateError(gate.name, measured, gate.budget, gate.sentence)


def int8_agreement(
    engine: Exported, twin: Exported, pixels: NDArray[np.uint8], *, budget: float = 0.95
) -> Gate:
    """Measure on how many photos the int8 end model decides like its float twin.

    Borderline photos (see `BORDERLINE_MARGIN`) are left out: on such a photo
    either answer is as good, and how many there are depends on the classifier, not on its engine.

    Args:
        engine: The int8 end model.
        twin: From `export_end_float`.
        pixels: uint8 photos (N, H, W, 3).
        budget: Smallest allowed share.
    """
    label = _label(engine)
    return _agreement(
        f"int8 agreement, {label}",
        engine(pixels)["logits"],
        twin(pixels)["logits"],
        budget,
        f"{label} decides like its float twin on",
    )


def cloud_agreement(
    engine: Exported,
    twin: Exported,
    tail: Exported,
    pixels: NDArray[np.uint8],
    *,
    budget: float = 0.95,
) -> Gate:
    """Measure how the cloud half decides on int8 features against the float twin's, rounded.

    What the device itself answers says nothing of the layout, scale and order of the features
    that it sends; this does.

    Args:
        engine: The int8 end model.
        twin: From `export_end_float`, its features in int8 steps.
        tail: The cloud half.
        pixels: uint8 photos (N, H, W, 3).
        budget: Smallest allowed share of the photos that are not borderline for the cloud half.
    """
    (spec,) = tail.entry.inputs
    steps = np.rint(twin(pixels)["features"] / np.float32(spec.scale))
    rounded = np.clip(steps, -128, 127).astype(np.int8)
    label = _label(engine)
    return _agreement(
        f"int8 features, {label}",
        tail(engine(pixels)["features"])["logits"],
        tail(rounded)["logits"],
        budget,
        f"on features of {label} the cloud half decides as on the float twin's on",
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
    loss, label = real - quantized, _label(engine)
    return Gate.at_most(
        f"int8 accuracy loss, {label}",
        loss,
        budget,
        f"{label} has top-1 {quantized:.3f}, its float twin {real:.3f}, on {len(pixels)} photos "
        f"(a loss of at most {budget:.3f} is allowed)",
    )


def int8_size(engine: Exported, twin: Exported, *, budget: float = 3.5) -> Gate:
    """Measure how many times smaller the int8 file is than its float ONNX twin."""
    ratio, label = twin.entry.size / engine.entry.size, _label(engine)
    return Gate.at_least(
        f"int8 size ratio, {label}",
        ratio,
        budget,
        f"{label} has {engine.entry.size:,} bytes, {ratio:.2f} times fewer than its float twin "
        f"(at least {budget:g} times needed)",
    )


def tflite_agreement(
    tflite: Exported, onnx: Exported, pixels: NDArray[np.uint8], *, budget: float = 0.97
) -> Gate:
    """Measure on how many photos the TFLite and the ONNX end model decide alike.

    Args:
        tflite: From `export_end_tflite`.
        onnx: From `export_end_onnx`.
        pixels: uint8 photos (N, H, W, 3).
        budget: Smallest allowed share of the photos that are not borderline for `onnx`.
    """
    return _agreement(
        "TFLite against ONNX",
        tflite(pixels)["logits"],
        onnx(pixels)["logits"],
        budget,
        f"{_label(tflite)} and {_label(onnx)} decide alike on",
    )


def _label(file: Exported) -> str:
    kind = {"onnx": "ONNX", "tflite": "TFLite"}[file.entry.engine]
    return kind if file.entry.arch == "any" else f"{kind} for {file.entry.arch}"


def _agreement(
    name: str,
    given: NDArray[np.float32],
    expected: NDArray[np.float32],
    budget: float,
    claim: str,
) -> Gate:
    """Compare decisions on the photos that are not borderline for `expected`.

    Where all are borderline, all of them count.
    """
    alike = given.argmax(1) == expected.argmax(1)
    ranked = np.sort(softmax(expected), axis=1)
    clear = ranked[:, -1] - ranked[:, -2] >= BORDERLINE_MARGIN
    share = float(alike[clear].mean() if clear.any() else alike.mean())
    if clear.any():
        photos = (
            f"{share:.1%} of the {clear.sum()} photos that are not borderline "
            f"({alike.mean():.1%} of all {len(alike)})"
        )
    else:
        photos = f"{share:.1%} of {len(alike)} photos, all borderline"
    return Gate.at_least(name, share, budget, f"{claim} {photos} (at least {budget:.1%} needed)")
