from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_kit.exits import (
    CurvePoint,
    ExitRule,
    normalized_entropy,
    softmax,
    threshold_for_offload,
)
from edge_kit.records import from_json, to_json

LOGITS = hnp.arrays(np.float32, st.integers(2, 50), elements=st.floats(-80, 80, width=32))


@given(LOGITS, st.floats(0.1, 10))
def test_softmax_is_a_distribution_in_the_order_of_logits(logits, temperature):
    p = softmax(logits, temperature)
    assert p.sum() == pytest.approx(1)
    assert (p >= 0).all()
    assert p[logits.argmax()] == p.max()


@given(LOGITS, st.floats(-1e4, 1e4))
def test_softmax_ignores_a_shift_of_all_logits(logits, shift):
    moved = logits.astype(np.float64) + shift
    assert softmax(moved) == pytest.approx(softmax(logits), abs=1e-9)


@given(LOGITS)
def test_entropy_is_between_zero_and_one(logits):
    assert 0 <= normalized_entropy(softmax(logits)) <= 1


@given(LOGITS, st.randoms(use_true_random=False))
def test_entropy_ignores_the_order_of_classes(logits, random):
    order = list(range(len(logits)))
    random.shuffle(order)
    a, b = normalized_entropy(softmax(logits)), normalized_entropy(softmax(logits[order]))
    assert a == pytest.approx(b, abs=1e-9)


@given(LOGITS)
def test_higher_temperature_never_lowers_entropy(logits):
    cool, hot = (float(normalized_entropy(softmax(logits, t))) for t in (1.0, 2.0))
    assert hot >= cool - 1e-9


@pytest.mark.parametrize("classes", [2, 3, 10, 1000])
def test_entropy_is_one_for_uniform_and_zero_for_certain(classes):
    assert normalized_entropy(np.full(classes, 1 / classes)) == pytest.approx(1)
    assert normalized_entropy(np.eye(classes)[0]) == 0


def test_entropy_of_a_known_distribution():
    # H(1/2, 1/4, 1/4) is 1.5 bits, the most that three classes can have log2(3) bits.
    assert normalized_entropy(np.array([0.5, 0.25, 0.25])) == pytest.approx(1.5 / math.log2(3))


def test_entropy_is_computed_per_row():
    rows = np.array([[1.0, 0.0], [0.5, 0.5]])
    assert normalized_entropy(rows).tolist() == pytest.approx([0, 1])


@given(LOGITS)
def test_thresholds_1_and_below_0_send_never_and_always(logits):
    assert ExitRule(1.0).decide(logits).exits
    assert not ExitRule(-0.1).decide(logits).exits


@given(LOGITS, st.floats(0, 1), st.floats(0, 1))
def test_sample_that_exits_also_exits_at_a_higher_threshold(logits, a, b):
    low, high = sorted((a, b))
    assert ExitRule(high).decide(logits).exits or not ExitRule(low).decide(logits).exits


@given(LOGITS, st.floats(0.1, 10))
def test_decision_fields_are_consistent(logits, temperature):
    d = ExitRule(0.5, temperature).decide(logits)
    assert d.confidence == d.probabilities[d.label] == d.probabilities.max()
    assert d.exits == (d.entropy <= 0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_logits_have_entropy_1(bad):
    d = ExitRule(0.9).decide(np.array([1.0, bad, 0.0], np.float32))
    assert d.entropy == pytest.approx(1)
    assert d.confidence == pytest.approx(1 / 3)
    assert not d.exits


@given(st.floats(-1, 2), st.floats(0.01, 100))
def test_rule_survives_json(threshold, temperature):
    rule = ExitRule(threshold, temperature)
    assert from_json(ExitRule, to_json(rule) | {"later": 1}) == rule


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"measure": "margin"}, "margin"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"threshold": math.nan}, "threshold"),
    ],
)
def test_invalid_rule_is_refused(change, word):
    with pytest.raises(ValueError, match=word):
        from_json(ExitRule, to_json(ExitRule(0.5)) | change)


CURVE = tuple(CurvePoint(t / 10, t / 10, 0.9, 0.0) for t in range(11))


@pytest.mark.parametrize(("target", "threshold"), [(0.0, 1.0), (1.0, 0.0), (0.32, 0.7)])
def test_target_offload_picks_the_nearest_point(target, threshold):
    assert threshold_for_offload(CURVE, target) == threshold


def test_tie_takes_the_threshold_that_sends_more():
    curve = (CurvePoint(0.8, 0.6, 0.9, 0.0), CurvePoint(0.2, 0.4, 0.9, 0.0))
    assert threshold_for_offload(curve, 0.5) == 0.2


@pytest.mark.parametrize(
    ("curve", "target"), [((), 0.5), (CURVE, -0.1), (CURVE, 1.1), (CURVE, math.nan)]
)
def test_target_out_of_range_or_without_curve_is_refused(curve, target):
    with pytest.raises(ValueError, match=r"curve|target"):
        threshold_for_offload(curve, target)


def test_curve_point_survives_json():
    point = CurvePoint(0.3, 0.6, 0.87, 412.5)
    assert from_json(CurvePoint, to_json(point)) == point
