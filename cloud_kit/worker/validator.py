"""Validate messages: every check between the network and an engine.

A message that is refused was not unpacked beyond the size that the manifest announces. One that
passes cannot fail later for its shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cloud_kit.worker.models import Models, Tail
from edge_kit.codec import expand
from edge_kit.errors import DecodeError
from edge_kit.link import Delivery
from edge_kit.tensors import TensorSpec, to_layout
from edge_kit.wire import FeatureHeader, Refusal, Topics, claimed_model, split_features

__all__ = ["Job", "Refused", "Validator"]

SAMPLE_BYTES = 8
# A header states its length in one byte, the CRC-32 takes four.
MAX_FRAME = 255 + 4

_SWAPPED = {"NCHW": "NHWC", "NHWC": "NCHW"}

# What a device is told for the reason of a `DecodeError`; of others, that the message is malformed.
_REFUSALS = {
    "oversized": Refusal.OVERSIZED,
    "unknown-model": Refusal.UNKNOWN_MODEL,
    "unknown-cut": Refusal.UNKNOWN_MODEL,
    "shape": Refusal.WRONG_SHAPE,
    "wrong-shape": Refusal.WRONG_SHAPE,
    "wrong-dtype": Refusal.WRONG_SHAPE,
    "wrong-scale": Refusal.WRONG_SHAPE,
}


@dataclass(frozen=True)
class Job:
    """A message that will be classified.

    Attributes:
        delivery: To be acknowledged once the answer is with the broker.
        topics: Of the device.
        header: What the message said.
        tail: Who finishes it.
        features: One sample in the tail's own layout, no batch dimension.
    """

    delivery: Delivery
    topics: Topics
    header: FeatureHeader
    tail: Tail
    features: NDArray[Any]

    @property
    def key(self) -> tuple[str, bytes, bytes, int]:
        """What makes a resend the same sample."""
        return self.topics.device, self.header.sample, self.tail.model, self.tail.cut


@dataclass(frozen=True)
class Refused:
    """A message that will not be classified.

    Attributes:
        delivery: To be acknowledged too: a resend would be refused again.
        reason: One word for counters, such as ``crc`` or ``unknown-model``.
        refusal: The code that the device gets.
        sentence: For people.
        topics: Of the device; None when the topic names none.
        sample: The sample id; None when the message does not say.
        model: Its model hash as far as it could be read.
    """

    delivery: Delivery
    reason: str
    refusal: Refusal
    sentence: str
    topics: Topics | None = None
    sample: bytes | None = None
    model: bytes = bytes(8)


@dataclass(frozen=True)
class Validator:
    """Checks messages, the cheapest checks first.

    Attributes:
        models: What this worker can finish.
    """

    models: Models

    @property
    def max_payload(self) -> int:
        """Bytes of the largest valid message.

        A writer takes the codec that packs best, so no body is larger than the raw tensor.
        """
        return self.models.max_bytes + MAX_FRAME

    def validate(self, delivery: Delivery) -> Job | Refused:
        """Return a `Job`, or why the message is refused. Never raises, whatever the bytes."""
        topics: Topics | None = None
        header: FeatureHeader | None = None
        try:
            topics = _device(delivery)
            header, codec, body = self._open(delivery.payload)
            _check_properties(delivery, topics, header)
            tail = self._tail(header)
            _check_spec(header, tail)
            raw = expand(codec, body, header.spec.nbytes)
        except DecodeError as error:
            return self._refused(delivery, topics, header, error)
        sample_array = np.frombuffer(raw, dtype=header.spec.dtype).reshape(header.spec.shape)
        features = to_layout(sample_array[np.newaxis], header.spec.layout, tail.layout)[0]
        return Job(delivery, topics, header, tail, features)

    def _refused(
        self,
        delivery: Delivery,
        topics: Topics | None,
        header: FeatureHeader | None,
        error: DecodeError,
    ) -> Refused:
        model = header.model if header else bytes(8)
        sample = header.sample if header else _sample_from(delivery)
        claimed = claimed_model(delivery.payload)
        if error.reason in ("oversized", "shape") and claimed and not self.models.knows(claimed):
            # Too large for the bundles here, but perhaps right for a worker with its bundle. A
            # device tries again after an unknown model, and gives up after the other refusals.
            model, error = claimed, _unknown_model(claimed)
        refusal = _REFUSALS.get(error.reason, Refusal.MALFORMED)
        return Refused(delivery, error.reason, refusal, str(error), topics, sample, model)

    def _open(self, payload: bytes) -> tuple[FeatureHeader, int, bytes]:
        if len(payload) > self.max_payload:
            what = f"{len(payload)} bytes are over the limit of {self.max_payload}"
            raise DecodeError("oversized", what)
        return split_features(payload, self.models.max_values)

    def _tail(self, header: FeatureHeader) -> Tail:
        tail = self.models.find(header.model, header.cut)
        if tail is not None:
            return tail
        if self.models.knows(header.model):
            what = f"model {header.model.hex()} has no cut {header.cut} here"
            raise DecodeError("unknown-cut", what)
        raise _unknown_model(header.model)


def _unknown_model(model: bytes) -> DecodeError:
    return DecodeError("unknown-model", f"no bundle here has model {model.hex()}")


def _device(delivery: Delivery) -> Topics:
    try:
        topics = Topics.of(delivery.topic)
    except ValueError as error:
        raise DecodeError("topic", str(error)) from None
    if delivery.topic != topics.features:
        raise DecodeError("topic", f"{delivery.topic!r} is not a topic of features")
    if delivery.qos == 0:
        # Acknowledgements are what limits how many messages the broker sends.
        raise DecodeError("qos", "features must be published with QoS 1")
    return topics


def _check_properties(delivery: Delivery, topics: Topics, header: FeatureHeader) -> None:
    if delivery.response_topic != topics.results:
        what = f"the response topic {delivery.response_topic!r} is not {topics.results!r}"
        raise DecodeError("response-topic", what)
    if delivery.correlation != header.sample:
        raise DecodeError("correlation", "the correlation data is not the sample's id")


def _check_spec(header: FeatureHeader, tail: Tail) -> None:
    got, want = header.spec, tail.features
    if got.dtype != want.dtype:
        raise DecodeError("wrong-dtype", f"dtype {got.dtype} is not {want.dtype}")
    if got.shape != _shape_in(want, got.layout):
        what = f"{got.layout}{got.shape} is not {want.layout}{want.shape}"
        raise DecodeError("wrong-shape", what)
    # The header holds a float32, the manifest a double.
    if np.float32(got.scale) != np.float32(want.scale) or got.zero_point != want.zero_point:
        what = f"scale {got.scale} and zero point {got.zero_point} are not "
        raise DecodeError("wrong-scale", f"{what}{want.scale} and {want.zero_point}")
    if header.label >= tail.classes:
        what = f"label {header.label} is out of range (0 to {tail.classes - 1})"
        raise DecodeError("label", what)


def _shape_in(spec: TensorSpec, layout: str) -> tuple[int, ...] | None:
    """Return the spec's shape written in `layout`; None where no transpose leads there."""
    if layout == spec.layout:
        return spec.shape
    if _SWAPPED.get(spec.layout) != layout:
        return None
    a, b, c = spec.shape
    return (b, c, a) if layout == "NHWC" else (c, a, b)


def _sample_from(delivery: Delivery) -> bytes | None:
    """Return the sample id that the broker carried beside a message that cannot be read."""
    data = delivery.correlation
    return data if data is not None and len(data) == SAMPLE_BYTES else None
