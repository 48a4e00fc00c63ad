"""How far a measured share can be trusted: Wilson's score interval."""

from __future__ import annotations

import math

__all__ = ["wilson"]

Z_95 = 1.959964  # two-sided 95 % quantile of the normal distribution


def wilson(successes: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Return the score interval of a share (Wilson, 1927), 0 to 1; (0, 1) for no samples.

    Args:
        successes: How many of `n`.
        n: Number of samples.
        z: Normal quantile; the default gives 95 %.
    """
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    denominator = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / denominator
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / denominator
    # Rounding must not leave the share outside: 72 of 72 would end at 0.9999999999999999.
    return max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half))
