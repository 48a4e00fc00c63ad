"""What the exported files answer on a split, and the figures that follow from it."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

pytest.importorskip("onnx")

from edge_kit.exits import ExitRule
from edge_kit.tensors import TensorSpec
from edge_kit.wire import FeatureHeader, FeatureMessage
from exporters.data.decoded import DecodedPhotos
from exporters.judge.outcome import Outcome, Share, measure, message_size

pytestmark = pytest.mark.export

RULE = ExitRule(0.5, 1.0)
SPEC = TensorSpec("features", (2, 3, 3), "NCHW", "int8", 0.25, 0)


def answers(labels: np.ndarray, strength: float) -> np.ndarray:
    return (strength * np.eye(3)[labels]).astype(np.float32)


def outcome(n: int = 40) -> Outcome:
    """Device sure and right on the first half, unsure and wrong on the rest; cloud right."""
    labels = np.arange(n) % 3
    first = (np.arange(n) < n // 2)[:, None]
    return Outcome(
        labels=labels,
        device=np.where(first, answers(labels, 9), answers((labels + 1) % 3, 0.1)),
        cloud=answers(labels, 5),
        full=answers(np.zeros(n, int), 5),
        message_bytes=np.full(n, 100),
        jpeg_bytes=np.full(n, 1500),
    )


def test_figures_of_known_outcome_are_exact():
    figures = outcome().figures(RULE)
    assert figures["photos"] == 40
    assert figures["device_share"]["value"] == 0.5
    accuracy = {who: share["value"] for who, share in figures["accuracy"].items()}
    assert accuracy == {"device": 0.5, "cloud": 1.0, "hybrid": 1.0, "full": 14 / 40}
    assert figures["bytes_per_offloaded"] == figures["bytes_per_message"] == 100
    assert figures["jpeg_bytes"] == 1500
    assert figures["jpeg_ratio"] == 15


def test_figures_count_bytes_of_sent_photos_only():
    made = replace(outcome(), message_bytes=np.repeat([50, 200], 20))
    figures = made.figures(RULE)
    assert figures["bytes_per_offloaded"] == 200
    assert figures["bytes_per_message"] == 125
    assert figures["jpeg_ratio"] == 7.5


def test_figures_without_messages_have_no_bytes():
    figures = outcome().figures(ExitRule(1.0))
    assert figures["device_share"]["value"] == 1.0
    assert figures["bytes_per_offloaded"] is None
    assert figures["jpeg_ratio"] is None


def test_rule_below_zero_sends_all_and_hybrid_is_cloud():
    made, rule = outcome(), ExitRule(-1.0)
    assert not made.exits(rule).any()
    np.testing.assert_array_equal(made.decisions(rule), made.cloud.argmax(1))
    assert made.figures(rule)["device_share"]["value"] == 0.0


def test_decisions_equal_those_of_the_exit_rule_photo_by_photo():
    made = outcome()
    for rule in (RULE, ExitRule(0.9, 3.0), ExitRule(0.999, 0.5)):
        one_by_one = [rule.decide(row) for row in made.device]
        assert made.exits(rule).tolist() == [d.exits for d in one_by_one]
        cloud = made.cloud.argmax(1)
        pairs = zip(one_by_one, cloud, strict=True)
        expected = [d.label if d.exits else c for d, c in pairs]
        assert made.decisions(rule).tolist() == expected
        np.testing.assert_allclose(made.entropy(rule), [d.entropy for d in one_by_one])


def test_share_has_wilson_interval():
    low, high = Share(95, 100).interval
    assert (round(low, 3), round(high, 3)) == (0.888, 0.978)
    assert Share(95, 100).to_json() == {"value": 0.95, "low": low, "high": high, "n": 100}


def test_share_of_no_photos_is_zero_with_open_interval():
    assert Share(0, 0).to_json() == {"value": 0.0, "low": 0.0, "high": 1.0, "n": 0}


def test_outcome_saved_and_loaded_is_equal(tmp_path):
    made = outcome()
    made.save(tmp_path / "o.npz")
    again = Outcome.load(tmp_path / "o.npz")
    for field in fields(Outcome):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(made, field.name))
        assert getattr(again, field.name).dtype == getattr(made, field.name).dtype
    assert again.figures(RULE) == made.figures(RULE)


def test_message_size_equals_encoded_length():
    features = np.zeros((2, 2, 3, 3), np.int8)
    features[1] = np.random.default_rng(0).integers(-90, 90, (2, 3, 3))
    header = FeatureHeader(b"m" * 8, 0, SPEC, b"s" * 8, 1, 2, 0.5)
    real = [len(FeatureMessage(header, row).encode()) for row in features]
    assert message_size(features, SPEC) == real
    assert real[0] < real[1]  # zeros pack better


class Engine:
    """Answers from the pixels themselves, and notes the sizes of the batches."""

    def __init__(self, gain: float) -> None:
        self.gain, self.batches = gain, []

    def __call__(self, batch: np.ndarray) -> dict[str, np.ndarray]:
        self.batches.append(len(batch))
        first = batch.reshape(len(batch), -1)[:, :3].astype(np.float32)
        features = np.repeat(batch.reshape(len(batch), -1)[:, :1], 18, 1).astype(np.int8)
        return {"logits": self.gain * first, "features": features.reshape(-1, 2, 3, 3)}


def test_measure_runs_all_photos_in_order_and_tail_on_features():
    random = np.random.default_rng(1)
    pixels = random.integers(0, 100, (150, 4, 4, 3)).astype(np.uint8)
    labels, jpeg = random.integers(0, 3, 150), random.integers(900, 1000, 150)
    end, tail, full = Engine(1.0), Engine(2.0), Engine(3.0)
    ticks: list[tuple[int, int]] = []
    decoded = DecodedPhotos(pixels, labels, jpeg)
    made = measure(end, tail, full, decoded, SPEC, lambda done, all_: ticks.append((done, all_)))
    first = pixels.reshape(150, -1)[:, :3].astype(np.float32)
    np.testing.assert_array_equal(made.device, first)
    np.testing.assert_array_equal(made.cloud, 2 * first[:, :1].repeat(3, 1))
    np.testing.assert_array_equal(made.full, 3 * first)
    np.testing.assert_array_equal(made.labels, labels)
    np.testing.assert_array_equal(made.jpeg_bytes, jpeg)
    assert made.message_bytes.tolist() == message_size(end(pixels)["features"], SPEC)
    assert ticks[-1] == (150, 150)
    assert tail.batches == full.batches
    assert sum(tail.batches) == 150
    assert max(tail.batches) < 150  # features of a whole split need not fit into memory
