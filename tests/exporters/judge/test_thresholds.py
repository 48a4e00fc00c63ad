"""Temperature, sweep, and the rule that chooses T."""

from __future__ import annotations

import numpy as np
import pytest

from edge_kit.errors import ExportError
from edge_kit.exits import CurvePoint, threshold_for_offload
from exporters.judge.thresholds import (
    choose,
    fit_exit,
    fit_temperature,
    negative_log_likelihood,
    sweep,
)

CLASSES = 5


def device_and_cloud(n: int = 400, seed: int = 0, temperature: float = 1.0):
    """Logits whose softmax at `temperature` is calibrated; a cloud that is mostly right."""
    rng = np.random.default_rng(seed)
    true = rng.normal(0, 2, (n, CLASSES))
    p = np.exp(true) / np.exp(true).sum(1, keepdims=True)
    labels = np.array([rng.choice(CLASSES, p=row) for row in p])
    cloud = np.eye(CLASSES)[labels] * 5
    wrong = rng.random(n) < 0.1
    cloud[wrong] = np.roll(cloud[wrong], 1, axis=1)
    return true * temperature, cloud, labels.astype(np.int64), rng.integers(300, 700, n)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_fit_temperature_recovers_known_value(temperature):
    logits, _, labels, _ = device_and_cloud(4000, temperature=temperature)
    found = fit_temperature(logits, labels)
    assert found == pytest.approx(temperature, rel=0.12)
    best = negative_log_likelihood(logits, labels, found)
    for factor in (0.8, 0.95, 1.05, 1.25):
        assert best <= negative_log_likelihood(logits, labels, found * factor)


def test_sweep_of_many_samples_spans_all_shares():
    device, cloud, labels, sizes = device_and_cloud()
    curve = sweep(device, cloud, labels, sizes, 1.0)
    assert 50 <= len(curve) <= 101
    shares = [p.device_share for p in curve]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert max(np.diff(shares)) < 0.03
    assert [p.threshold for p in curve] == sorted(p.threshold for p in curve)
    assert curve[0].mean_bytes == pytest.approx(sizes.mean())
    assert curve[-1].mean_bytes == 0
    assert curve[0].accuracy == pytest.approx((cloud.argmax(1) == labels).mean())
    assert curve[-1].accuracy == pytest.approx((device.argmax(1) == labels).mean())


def test_sweep_of_few_samples_has_point_per_sample():
    device, cloud, labels, sizes = device_and_cloud(4)
    curve = sweep(device, cloud, labels, sizes, 1.0)
    assert [p.device_share for p in curve] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_sweep_of_equal_entropies_has_two_points():
    logits = np.tile([[3.0, 0.0, 0.0]], (6, 1))
    labels = np.zeros(6, np.int64)
    curve = sweep(logits, logits, labels, np.full(6, 100), 1.0)
    assert [(p.threshold, p.device_share) for p in curve] == [(-1.0, 0.0), (1.0, 1.0)]


def curve_of(*rows: tuple[float, float]) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(share, share, accuracy, 0.0) for share, accuracy in rows)


CURVE = curve_of((0.0, 0.90), (0.3, 0.92), (0.6, 0.90), (0.7, 0.896), (0.8, 0.89), (1.0, 0.85))


@pytest.mark.parametrize(
    ("budget", "max_share", "share"),
    [(0.0, 1.0, 0.6), (0.005, 1.0, 0.7), (0.01, 1.0, 0.8), (1.0, 1.0, 1.0), (1.0, 0.75, 0.7)],
)
def test_choose_within_budget_takes_largest_share(budget, max_share, share):
    assert choose(CURVE, 0.90, budget=budget, max_share=max_share).device_share == share


def test_choose_without_good_point_takes_most_accurate():
    curve = curve_of((0.2, 0.80), (0.5, 0.85), (1.0, 0.82))
    assert choose(curve, 0.95, budget=0.0).device_share == 0.5


def test_fitted_rule_reaches_its_curve_point():
    device, cloud, labels, sizes = device_and_cloud(800)
    fitted = fit_exit(device, cloud, labels, sizes, budget=0.005)
    decisions = [fitted.rule.decide(row) for row in device]
    exits = np.array([d.exits for d in decisions])
    hybrid = np.where(exits, [d.label for d in decisions], cloud.argmax(1))
    assert exits.mean() == pytest.approx(fitted.chosen.device_share)
    assert (hybrid == labels).mean() == pytest.approx(fitted.chosen.accuracy)
    assert fitted.chosen.accuracy >= fitted.cloud_accuracy - 0.005
    assert 0.05 < fitted.chosen.device_share < 0.95
    assert fitted.samples == 800
    assert fitted.rule.threshold in [p.threshold for p in fitted.curve]
    assert threshold_for_offload(fitted.curve, 0.3) in [p.threshold for p in fitted.curve]


def test_empty_calibration_is_refused():
    device, cloud, labels, sizes = device_and_cloud(8)
    with pytest.raises(ExportError, match="calibration split is empty"):
        fit_exit(device[:0], cloud[:0], labels[:0], sizes[:0])
