"""Fit the exit rule on what the exported int8 engine says of the calibration split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.exits import CurvePoint, ExitRule

__all__ = ["Fitted", "fit_exit", "fit_temperature", "sweep", "wilson"]


@dataclass(frozen=True)
class Fitted:
    """A fitted exit rule.

    Attributes:
        rule: Threshold and temperature.
        curve: The whole sweep, T ascending.
        chosen: The row of the curve that the rule sits on.
        cloud_accuracy: Cloud-only top-1 on the same samples.
    """

    rule: ExitRule
    curve: tuple[CurvePoint, ...]
    chosen: CurvePoint
    cloud_accuracy: float


def wilson(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Return the Wilson score interval of a share (Wilson, 1927)."""
    raise NotImplementedError


def fit_temperature(logits: NDArray[np.floating[Any]], labels: NDArray[np.int64]) -> float:
    """Return the temperature with the smallest negative log likelihood (Guo et al., 2017)."""
    raise NotImplementedError


def sweep(
    device_logits: NDArray[np.floating[Any]],
    cloud_logits: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    message_bytes: NDArray[Any],
    temperature: float,
    points: int = 101,
) -> tuple[CurvePoint, ...]:
    """Measure share, accuracy and bytes at up to `points` thresholds."""
    raise NotImplementedError


def fit_exit(
    device_logits: NDArray[np.floating[Any]],
    cloud_logits: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
    message_bytes: NDArray[Any],
    *,
    budget: float = 0.005,
    min_share: float = 0.0,
) -> Fitted:
    """Fit temperature and threshold."""
    raise NotImplementedError
