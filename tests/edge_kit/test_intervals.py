"""Wilson's interval."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_kit.intervals import wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (81, 263, 0.2553, 0.3662)],
)
def test_wilson_equals_published_values(successes, n, low, high):
    """81 of 263: Newcombe (1998), method 3; 0 and 10 of 10 by the closed form n / (n + z^2)."""
    assert wilson(successes, n) == pytest.approx((low, high), abs=2e-4)


def test_wilson_of_no_samples_is_zero_to_one():
    assert wilson(0, 0) == (0.0, 1.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.data())
def test_wilson_interval_contains_share(n, data):
    successes = data.draw(st.integers(0, n))
    low, high = wilson(successes, n)
    share = successes / n
    assert 0 <= low <= share <= high <= 1
