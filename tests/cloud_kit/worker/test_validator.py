from __future__ import annotations

import numpy as np
import pytest

from cloud_kit.worker.validator import Job, Refused, Validator
from edge_kit.tensors import TensorSpec
from edge_kit.wire import Refusal, Topics
from tests.support.messages import (
    colour,
    delivery,
    message,
    models,
    reseal,
    sample_id,
)
from tests.support.tiny import FEATURES

VALIDATOR = Validator(models())


def changed(**fields) -> TensorSpec:
    return TensorSpec(**({k: getattr(FEATURES, k) for k in FEATURES.__dataclass_fields__} | fields))


def test_valid_message_becomes_a_job():
    verdict = VALIDATOR.validate(delivery(message(2, label=1), 2))
    assert isinstance(verdict, Job)
    assert verdict.topics == Topics("cam-1")
    assert verdict.header.sample == sample_id(2)
    assert np.array_equal(verdict.features, colour(2))


def test_features_in_another_layout_are_transposed():
    spec = changed(shape=(4, 4, 3), layout="NHWC")
    payload = message(1, spec=spec, features=np.ascontiguousarray(colour(1).transpose(1, 2, 0)))
    verdict = VALIDATOR.validate(delivery(payload, 1))
    assert isinstance(verdict, Job)
    assert np.array_equal(verdict.features, colour(1))


REFUSALS = {
    "short": (b"EKF1", {}, Refusal.MALFORMED),
    "crc": (message()[:-1] + b"\0", {}, Refusal.MALFORMED),
    "magic": (b"JPEG" + message()[4:], {}, Refusal.MALFORMED),
    "version": (reseal(message()[:4] + b"\2" + message()[5:]), {}, Refusal.MALFORMED),
    "oversized": (bytes(48 + 255 + 5), {}, Refusal.OVERSIZED),
    "unknown-model": (message(model=b"nobody's"), {}, Refusal.UNKNOWN_MODEL),
    "unknown-cut": (message(cut=1), {}, Refusal.UNKNOWN_MODEL),
    "wrong-shape": (message(spec=changed(shape=(4, 3, 4))), {}, Refusal.WRONG_SHAPE),
    "shape": (
        message(spec=changed(shape=(3, 80, 80)), features=np.zeros((3, 80, 80), np.int8)),
        {},
        Refusal.WRONG_SHAPE,
    ),
    "wrong-dtype": (
        message(spec=changed(dtype="uint8"), features=np.zeros((3, 4, 4), np.uint8)),
        {},
        Refusal.WRONG_SHAPE,
    ),
    "wrong-scale": (message(spec=changed(scale=2.5)), {}, Refusal.WRONG_SHAPE),
    "label": (message(label=3), {}, Refusal.MALFORMED),
    "qos": (message(), {"qos": 0}, Refusal.MALFORMED),
    "topic": (message(), {"topic": "edgekit/1/cam-1/results"}, Refusal.MALFORMED),
    "response-topic": (
        message(),
        {"response_topic": "edgekit/1/cam-2/results"},
        Refusal.MALFORMED,
    ),
    "correlation": (message(), {"correlation": b"another!"}, Refusal.MALFORMED),
}


@pytest.mark.parametrize("side", [10, 80])
def test_too_large_message_of_an_unknown_model_is_refused_as_unknown(side):
    spec = changed(shape=(3, side, side))
    noise = np.random.default_rng(1).integers(-128, 128, spec.shape).astype(np.int8)
    for features in (noise, np.zeros_like(noise)):
        payload = message(model=b"nobody's", spec=spec, features=features)
        verdict = VALIDATOR.validate(delivery(payload))
        assert isinstance(verdict, Refused)
        assert (verdict.reason, verdict.refusal) == ("unknown-model", Refusal.UNKNOWN_MODEL)
        assert verdict.model == b"nobody's"


@pytest.mark.parametrize("reason", REFUSALS)
def test_invalid_message_is_refused_with_its_reason(reason):
    payload, changes, refusal = REFUSALS[reason]
    verdict = VALIDATOR.validate(delivery(payload, **changes))
    assert isinstance(verdict, Refused)
    assert (verdict.reason, verdict.refusal) == (reason, refusal)
    assert verdict.sentence


def test_wrong_zero_point_is_refused():
    verdict = VALIDATOR.validate(delivery(message(spec=changed(zero_point=0))))
    assert isinstance(verdict, Refused)
    assert verdict.reason == "wrong-scale"
