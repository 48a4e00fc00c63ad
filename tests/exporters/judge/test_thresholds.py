"""Temperature, sweep, and the rule that chooses T."""

from __future__ import annotations

import numpy as np
import pytest

from edge_kit.errors import ExportError
from edge_kit.exits import CurvePoint, normalized_entropy, softmax, threshold_for_offload
from exporters.judge.thresholds import (
    TEMPERATURES,
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


def two_classes(margin: float, right: int, wrong: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of one logit difference, of which so many are right."""
    logits = np.tile([[margin, 0.0]], (right + wrong, 1))
    return logits, np.repeat([0, 1], [right, wrong]).astype(np.int64)


@pytest.mark.parametrize(
    ("margin", "right", "wrong"), [(2.0, 75, 25), (8.0, 9, 1), (0.5, 3, 2), (1.0, 60, 40)]
)
def test_fit_temperature_of_two_classes_equals_closed_form(margin, right, wrong):
    """1 / (1 + exp(-margin / T)) must be the share that is right."""
    found = fit_temperature(*two_classes(margin, right, wrong))
    assert found == pytest.approx(margin / np.log(right / wrong), rel=1e-5)


def test_fit_temperature_of_perfect_classifier_goes_to_lower_bound():
    assert fit_temperature(*two_classes(0.5, 10, 0)) == pytest.approx(TEMPERATURES[0], rel=1e-3)


def test_fit_temperature_of_guessing_classifier_goes_to_upper_bound():
    assert fit_temperature(*two_classes(3.0, 5, 5)) == pytest.approx(TEMPERATURES[1], rel=1e-3)


def test_fit_temperature_scales_with_logits():
    logits, _, labels, _ = device_and_cloud(500)
    assert fit_temperature(4 * logits, labels) == pytest.approx(
        4 * fit_temperature(logits, labels), rel=1e-4
    )


def test_fit_temperature_with_class_absent_from_labels_is_finite():
    logits, _, labels, _ = device_and_cloud(400)
    here = labels != 2
    found = fit_temperature(logits[here], labels[here])
    assert TEMPERATURES[0] < found < TEMPERATURES[1]


def test_negative_log_likelihood_equals_hand_computed():
    logits = np.log([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    labels = np.array([0, 1])
    assert negative_log_likelihood(logits, labels, 1.0) == pytest.approx(
        -(np.log(0.5) + np.log(0.1)) / 2
    )
    assert negative_log_likelihood(logits, labels, 1e9) == pytest.approx(np.log(3))


def test_negative_log_likelihood_of_impossible_class_is_finite():
    logits = np.array([[1e6, 0.0]])
    assert negative_log_likelihood(logits, np.array([1]), 1.0) == pytest.approx(690.8, abs=0.1)


# Four samples from sure to unsure; the device is right on the first two and the last, the cloud
# on all but the first.
FOUR = np.array([[6.0, 0.0], [3.0, 0.0], [1.5, 0.0], [0.2, 0.0]])
FOUR_LABELS = np.array([0, 0, 1, 0])
FOUR_CLOUD = np.array([[0.0, 9.0], [9.0, 0.0], [0.0, 9.0], [9.0, 0.0]])
FOUR_BYTES = np.array([100, 200, 300, 400])


def test_sweep_of_four_samples_equals_hand_computed():
    curve = sweep(FOUR, FOUR_CLOUD, FOUR_LABELS, FOUR_BYTES, 1.0)
    rows = [(p.device_share, p.accuracy, p.mean_bytes) for p in curve]
    assert rows == [
        (0.0, 0.75, 250.0),
        (0.25, 1.0, 225.0),
        (0.5, 1.0, 175.0),
        (0.75, 0.75, 100.0),
        (1.0, 0.75, 0.0),
    ]
    entropy = normalized_entropy(softmax(FOUR))
    between = (entropy[:-1] + entropy[1:]) / 2
    assert [p.threshold for p in curve] == pytest.approx([-1.0, *between, 1.0])


@pytest.mark.parametrize(
    ("budget", "max_share", "share"),
    [(0.0, 1.0, 1.0), (0.0, 0.8, 0.75), (0.0, 0.5, 0.5), (-0.25, 1.0, 0.5), (0.0, 0.0, 0.0)],
)
def test_fit_exit_of_four_samples_takes_hand_computed_point(budget, max_share, share):
    """Cloud-only is right on 3 of 4; a budget below 0 asks for more than that."""
    fitted = fit_exit(FOUR, FOUR_CLOUD, FOUR_LABELS, FOUR_BYTES, budget=budget, max_share=max_share)
    assert fitted.chosen.device_share == share
    assert (fitted.device_accuracy, fitted.cloud_accuracy, fitted.samples) == (0.75, 0.75, 4)
    assert fitted.rule.threshold == fitted.chosen.threshold


def test_sweep_at_threshold_one_answers_wholly_unsure_samples_too():
    device = np.array([[4.0, 0.0], [0.0, 0.0]])
    curve = sweep(device, device, np.zeros(2, int), np.full(2, 10), 1.0)
    assert (curve[-1].threshold, curve[-1].device_share) == (1.0, 1.0)


def test_sweep_never_separates_samples_of_equal_entropy():
    device = FOUR[[0, 1, 1, 1, 3]]
    curve = sweep(device, device, np.zeros(5, int), np.full(5, 10), 1.0)
    assert [p.device_share for p in curve] == [0.0, 0.2, 0.8, 1.0]


def test_sweep_thresholds_leave_room_for_rounding_of_another_board():
    device, cloud, labels, sizes = device_and_cloud(50)
    entropy = np.sort(normalized_entropy(softmax(device)))
    for point in sweep(device, cloud, labels, sizes, 1.0)[1:-1]:
        gap = np.diff(entropy)[np.searchsorted(entropy, point.threshold) - 1]
        assert np.abs(entropy - point.threshold).min() == pytest.approx(gap / 2)


@pytest.mark.parametrize("points", [3, 10, 101])
def test_sweep_has_no_more_points_than_asked(points):
    device, cloud, labels, sizes = device_and_cloud(300)
    curve = sweep(device, cloud, labels, sizes, 1.0, points)
    assert len(curve) == points
    assert (curve[0].threshold, curve[-1].threshold) == (-1.0, 1.0)


def test_sweep_at_other_temperature_changes_order_of_entropies():
    device = np.array([[4.0, 3.9, -50.0], [2.0, 0.0, 0.0]])
    labels, sizes = np.array([0, 1]), np.array([10, 30])
    cold, hot = (sweep(device, device, labels, sizes, t)[1] for t in (0.05, 50.0))
    assert (cold.device_share, hot.device_share) == (0.5, 0.5)
    assert (cold.mean_bytes, hot.mean_bytes) == (5.0, 15.0)  # the other sample is the surer one


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


def test_choose_of_equal_shares_takes_more_accurate():
    curve = curve_of((0.0, 0.9), (0.5, 0.91), (0.5, 0.93), (0.5, 0.92))
    assert choose(curve, 0.9, budget=0.0).accuracy == 0.93


def test_choose_at_exactly_the_budget_accepts_point():
    curve = curve_of((0.0, 0.9), (1.0, 0.9 - 0.1 - 0.1))
    assert choose(curve, 0.9, budget=0.2).device_share == 1.0


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
