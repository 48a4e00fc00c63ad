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
        delivery: To be acknowledged all the same; a resend would fare no better.
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


class _CheckError(Exception):
    def __init__(self, reason: str, refusal: Refusal, sentence: str) -> None:
        super().__init__(sentence)
        self.reason, self.refusal, self.sentence = reason, refusal, sentence


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
        except (DecodeError, _CheckError) as error:
            return self._refused(delivery, topics, header, error)
        sample_array = np.frombuffer(raw, dtype=header.spec.dtype).reshape(header.spec.shape)
        features = to_layout(sample_array[np.newaxis], header.spec.layout, tail.layout)[0]
        return Job(delivery, topics, header, tail, features)

    def _refused(
        self,
        delivery: Delivery,
        topics: Topics | None,
        header: FeatureHeader | None,
        error: DecodeError | _CheckError,
    ) -> Refused:
        model = header.model if header else bytes(8)
        sample = header.sample if header else _sample_from(delivery)
        claimed = claimed_model(delivery.payload)
        if error.reason in ("oversized", "shape") and claimed and not self.models.knows(claimed):
            # Too large for the bundles here, but perhaps right for a worker with its bundle. A
            # device tries again after an unknown model, and gives up after the other refusals.
            model, error = claimed, _unknown_model(claimed)
        refusal = error.refusal if isinstance(error, _CheckError) else _refusal_of(error)
        return Refused(delivery, error.reason, refusal, str(error), topics, sample, model)

    def _open(self, payload: bytes) -> tuple[FeatureHeader, int, bytes]:
        if len(payload) > self.max_payload:
            raise _CheckError(
                "oversized",
                Refusal.OVERSIZED,
                f"{len(payload)} bytes are over the limit of {self.max_payload}",
            )
        return split_features(payload, self.models.max_values)

    def _tail(self, header: FeatureHeader) -> Tail:
        tail = self.models.find(header.model, header.cut)
        if tail is None and self.models.knows(header.model):
            what = f"model {header.model.hex()} has no cut {header.cut} here"
            raise _CheckError("unknown-cut", Refusal.UNKNOWN_MODEL, what)
        if tail is None:
            raise _unknown_model(header.model)
        return tail


def _unknown_model(model: bytes) -> _CheckError:
    what = f"no bundle here has model {model.hex()}"
    return _CheckError("unknown-model", Refusal.UNKNOWN_MODEL, what)


def _device(delivery: Delivery) -> Topics:
    try:
        topics = Topics.of(delivery.topic)
    except ValueError as error:
        raise _CheckError("topic", Refusal.MALFORMED, str(error)) from None
    if delivery.topic != topics.features:
        raise _CheckError("topic", Refusal.MALFORMED, f"{delivery.topic!r} carries no features")
    if delivery.qos == 0:
        # Acknowledgements are what limits how many messages the broker sends.
        raise _CheckError("qos", Refusal.MALFORMED, "features must be published with QoS 1")
    return topics


def _check_properties(delivery: Delivery, topics: Topics, header: FeatureHeader) -> None:
    if delivery.response_topic != topics.results:
        raise _CheckError(
            "response-topic",
            Refusal.MALFORMED,
            f"the response topic {delivery.response_topic!r} is not {topics.results!r}",
        )
    if delivery.correlation != header.sample:
        raise _CheckError(
            "correlation", Refusal.MALFORMED, "the correlation data is not the sample's id"
        )


def _check_spec(header: FeatureHeader, tail: Tail) -> None:
    got, want = header.spec, tail.features
    if got.dtype != want.dtype:
        raise _CheckError(
            "wrong-dtype", Refusal.WRONG_SHAPE, f"dtype {got.dtype} is not {want.dtype}"
        )
    if got.shape != _shape_in(want, got.layout):
        raise _CheckError(
            "wrong-shape",
            Refusal.WRONG_SHAPE,
            f"{got.layout}{got.shape} is not {want.layout}{want.shape}",
        )
    # The header holds a float32, the manifest a double.
    if np.float32(got.scale) != np.float32(want.scale) or got.zero_point != want.zero_point:
        raise _CheckError(
            "wrong-scale",
            Refusal.WRONG_SHAPE,
            f"scale {got.scale} and zero point {got.zero_point} are not "
            f"{want.scale} and {want.zero_point}",
        )
    if header.label >= tail.classes:
        raise _CheckError(
            "label",
            Refusal.MALFORMED,
            f"label {header.label} is not below {tail.classes} classes",
        )


def _shape_in(spec: TensorSpec, layout: str) -> tuple[int, ...] | None:
    """Return the spec's shape written in `layout`; None where no transpose leads there."""
    if layout == spec.layout:
        return spec.shape
    if _SWAPPED.get(spec.layout) != layout:
        return None
    a, b, c = spec.shape
    return (b, c, a) if layout == "NHWC" else (c, a, b)


def _refusal_of(error: DecodeError) -> Refusal:
    return Refusal.WRONG_SHAPE if error.reason == "shape" else Refusal.MALFORMED


def _sample_from(delivery: Delivery) -> bytes | None:
    """Return the sample id that the broker carried beside a message that cannot be read."""
    data = delivery.correlation
    return data if data is not None and len(data) == SAMPLE_BYTES else None
