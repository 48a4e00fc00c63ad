"""Fit the exit rule on what the exported int8 engine says of the calibration split.

The rule that chooses T: among the thresholds of the sweep whose hybrid accuracy is at least
``cloud-only accuracy - budget``, the one with the largest device share. Where none is, the most
accurate one. A ceiling on the device share, when asked for, comes first: photos in the field are
less like the calibration split than it is like itself, and a ceiling keeps a margin for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import ExportError
from edge_kit.exits import CurvePoint, ExitRule, normalized_entropy, softmax

__all__ = [
    "FittedExit",
    "choose",
    "fit_exit",
    "fit_temperature",
    "negative_log_likelihood",
    "sweep",
]

TEMPERATURES = (0.05, 20.0)
_GOLDEN = (math.sqrt(5) - 1) / 2
_STEPS = 60


@dataclass(frozen=True)
class FittedExit:
    """A fitted exit rule.

    Attributes:
        rule: Threshold and temperature.
        curve: The whole sweep, T ascending.
        chosen: The row of the curve that the rule sits on.
        device_accuracy: Device-only top-1 on the same samples.
        cloud_accuracy: Cloud-only top-1 on the same samples.
        samples: How many there were.
    """

    rule: ExitRule
    curve: tuple[CurvePoint, ...]
    chosen: CurvePoint
    device_accuracy: float
    cloud_accuracy: float
    samples: int


def negative_log_likelihood(
    logits: NDArray[np.floating[Any]], labels: NDArray[np.int64], temperature: float
) -> float:
    """Return the mean -ln p of the true classes; logits (N, classes), labels (N,)."""
    p = softmax(logits, temperature)[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(p, 1e-300)).mean())


def fit_temperature(logits: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> float:
    """Return the temperature with the smallest negative log likelihood (Guo et al., 2017).

    A golden-section search over ln temperature: the likelihood has one minimum in 1/temperature.

    Args:
        logits: (N, classes), as the engine gives them.
        labels: (N,).

    Raises:
        ExportError: There are no samples.
    """
    if len(labels) == 0:
        raise ExportError("the calibration split is empty", "give the validation split photos")

    def cost(t: float) -> float:
        return negative_log_likelihood(logits, labels, math.exp(t))

    low, high = (math.log(t) for t in TEMPERATURES)
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = cost(left), cost(right)
    for _ in range(_STEPS):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = cost(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = cost(right)
    return math.exp((low + high) / 2)


def sweep(
    device_logits: NDArray[np.floating[Any]],
    cloud_logits: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    message_bytes: NDArray[Any],
    temperature: float,
    points: int = 101,
) -> tuple[CurvePoint, ...]:
    """Measure device share, hybrid accuracy and mean bytes at up to `points` thresholds.

    The thresholds are quantiles of the observed entropies (so that the shares are even), with
    -1 (send all) before them and 1 (send none) after them. Each lies halfway between two
    observed entropies, so that rounding on another board moves no sample across.

    Args:
        device_logits: The int8 end model's, (N, classes).
        cloud_logits: The cloud half's on that end model's features, (N, classes).
        labels: (N,).
        message_bytes: Size of each sample's feature message, (N,).
        temperature: Divides the device's logits.
        points: At least 3.

    Returns:
        Rows with T ascending.
    """
    entropy = normalized_entropy(softmax(device_logits, temperature))
    device_right = device_logits.argmax(1) == labels
    cloud_right = cloud_logits.argmax(1) == labels
    seen = np.unique(entropy)
    between = (seen[:-1] + seen[1:]) / 2
    if len(between) > points - 2:
        keep = np.linspace(0, len(between) - 1, points - 2).round().astype(int)
        between = between[np.unique(keep)]
    rows = []
    for threshold in (-1.0, *between.tolist(), 1.0):
        exits = entropy <= threshold
        rows.append(
            CurvePoint(
                threshold=float(threshold),
                device_share=float(exits.mean()),
                accuracy=float(np.where(exits, device_right, cloud_right).mean()),
                mean_bytes=float(np.where(exits, 0, message_bytes).mean()),
            )
        )
    return tuple(rows)


def choose(
    curve: tuple[CurvePoint, ...],
    cloud_accuracy: float,
    *,
    budget: float,
    max_share: float = 1.0,
) -> CurvePoint:
    """Apply the rule of this module to a sweep.

    Args:
        curve: From `sweep`.
        cloud_accuracy: Cloud-only top-1 on the same samples.
        budget: How much of it the hybrid may lose.
        max_share: Device share to stay below whatever the accuracy, 0 to 1.
    """
    allowed = [p for p in curve if p.device_share <= max_share]
    # One part in 10^9 absorbs the rounding of means; a real difference is at least 1 / N.
    good = [p for p in allowed if p.accuracy >= cloud_accuracy - budget - 1e-9]
    if good:
        return max(good, key=lambda p: (p.device_share, p.accuracy))
    return max(allowed, key=lambda p: (p.accuracy, p.device_share))


def fit_exit(
    device_logits: NDArray[np.floating[Any]],
    cloud_logits: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    message_bytes: NDArray[Any],
    *,
    budget: float = 0.005,
    max_share: float = 1.0,
) -> FittedExit:
    """Fit temperature and threshold on the calibration split.

    Args:
        device_logits: The int8 end model's, (N, classes).
        cloud_logits: The cloud half's on that end model's features, (N, classes).
        labels: (N,).
        message_bytes: Size of each sample's feature message, (N,).
        budget: Hybrid accuracy may fall this much below cloud-only accuracy.
        max_share: Device share to stay below whatever the accuracy, 0 to 1.

    Raises:
        ExportError: There are no samples.
    """
    temperature = fit_temperature(device_logits, labels)
    curve = sweep(device_logits, cloud_logits, labels, message_bytes, temperature)
    cloud_accuracy = float((cloud_logits.argmax(1) == labels).mean())
    chosen = choose(curve, cloud_accuracy, budget=budget, max_share=max_share)
    return FittedExit(
        rule=ExitRule(chosen.threshold, temperature),
        curve=curve,
        chosen=chosen,
        device_accuracy=float((device_logits.argmax(1) == labels).mean()),
        cloud_accuracy=cloud_accuracy,
        samples=len(labels),
    )
