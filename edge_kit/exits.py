"""The exit rule: which samples the device answers itself.

Normalized entropy after BranchyNet (Teerapittayanon et al., 2016) and DDNN (2017):
eta(p) = -sum(p_i ln p_i) / ln |C|, from 0 (sure) to 1 (unsure). A sample exits when eta <= T.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "CurvePoint",
    "Decision",
    "ExitRule",
    "normalized_entropy",
    "softmax",
    "threshold_for_offload",
]

MEASURE = "normalized_entropy"


def softmax(logits: NDArray[np.floating[Any]], temperature: float = 1.0) -> NDArray[np.float64]:
    """Return probabilities over the last axis, shape kept; `temperature` divides the logits."""
    z = np.asarray(logits, dtype=np.float64) / temperature
    z = z - z.max(axis=-1, keepdims=True)
    e = np.exp(z)
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


def normalized_entropy(p: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return eta over the last axis, in [0, 1]; 0 ln 0 counts as 0."""
    p = np.asarray(p, dtype=np.float64)
    terms = p * np.log(np.where(p > 0, p, 1.0))
    return np.asarray(np.clip(-terms.sum(axis=-1) / np.log(p.shape[-1]), 0.0, 1.0))


@dataclass(frozen=True)
class Decision:
    """What an exit says of one sample.

    Attributes:
        label: Index of the most probable class.
        confidence: Its probability.
        entropy: Normalized entropy, 0 to 1.
        exits: True when the device's answer is final.
        probabilities: One value a class.
    """

    label: int
    confidence: float
    entropy: float
    exits: bool
    probabilities: NDArray[np.float64]


@dataclass(frozen=True)
class ExitRule:
    """Decide from an exit head's logits.

    Attributes:
        threshold: T; 1 never sends, below 0 always sends.
        temperature: Divides the logits before softmax (Guo et al., 2017).
        measure: What is compared with T; only normalized entropy is known.
    """

    threshold: float
    temperature: float = 1.0
    measure: str = MEASURE

    def __post_init__(self) -> None:
        if self.measure != MEASURE:
            raise ValueError(f"exit measure {self.measure!r} is not {MEASURE!r}")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(f"temperature {self.temperature} is not a positive number")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold {self.threshold} is not a number")

    def decide(self, logits: NDArray[np.floating[Any]]) -> Decision:
        """Decide one sample.

        Args:
            logits: Shape (classes,). Any that is not finite makes the exit wholly unsure.
        """
        if np.isfinite(logits).all():
            p = softmax(logits, self.temperature)
        else:
            p = np.full(np.shape(logits), 1.0 / np.shape(logits)[-1])
        label = int(p.argmax())
        entropy = float(normalized_entropy(p))
        return Decision(label, float(p[label]), entropy, entropy <= self.threshold, p)


@dataclass(frozen=True)
class CurvePoint:
    """One row of the threshold sweep, measured on the calibration split.

    Attributes:
        threshold: T.
        device_share: Share of samples that exit, 0 to 1.
        accuracy: Top-1 of the hybrid at this T.
        mean_bytes: Mean bytes sent per sample, those answered locally counting as 0.
    """

    threshold: float
    device_share: float
    accuracy: float
    mean_bytes: float


def threshold_for_offload(curve: Sequence[CurvePoint], target_offload: float) -> float:
    """Return the T whose offloaded share comes nearest to `target_offload` (0 to 1).

    Ties go to the smaller T, which sends more.

    Raises:
        ValueError: The curve is empty or the target lies outside [0, 1].
    """
    if not curve:
        raise ValueError("the bundle holds no threshold curve")
    if not 0 <= target_offload <= 1:
        raise ValueError(f"target offload {target_offload} lies outside 0 to 1")
    best = min(curve, key=lambda p: (abs((1 - p.device_share) - target_offload), p.threshold))
    return best.threshold
