"""The two messages of the protocol, and the topics that carry them. Pure: no sockets.

`FeatureMessage` goes from a device to the workers, `ResultMessage` comes back. Each is a fixed
little-endian header, a body, and a CRC-32 over both. A reader accepts a longer header than it
knows and ignores the rest; everything else that is off raises `DecodeError`. The byte tables are
in ``docs/wire-format.md``.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from edge_kit.codec import compress, expand
from edge_kit.errors import DecodeError
from edge_kit.tensors import DTYPES, LAYOUTS, TensorSpec

__all__ = [
    "CONTENT_TYPE",
    "FeatureHeader",
    "FeatureMessage",
    "Refusal",
    "ResultMessage",
    "Topics",
    "claimed_model",
    "shared_filter",
]

CONTENT_TYPE = "application/vnd.edgekit.v1"
VERSION = 1
MAX_VALUES = 1 << 22

_FEATURE_MAGIC = b"EKF1"
_RESULT_MAGIC = b"EKR1"
# magic, version, header length, model hash, cut, codec, dtype, layout, rank, shape x3,
# scale, zero point, sample id, captured at (unix microseconds), device label, device entropy
_FEATURE = struct.Struct("<4sBB8sBBBBB3Hfh8sqHf")
# magic, version, header length, model hash, sample id, refusal, label, confidence, entropy,
# engine microseconds, batch size, number of probabilities
_RESULT = struct.Struct("<4sBB8s8sBHffIHH")
_CRC = struct.Struct("<I")
_DEVICE = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Refusal(IntEnum):
    """Why a worker will not classify a message; 0 means that it did."""

    NONE = 0
    UNKNOWN_MODEL = 1
    WRONG_SHAPE = 2
    MALFORMED = 3
    OVERSIZED = 4
    ENGINE = 5


@dataclass(frozen=True)
class FeatureHeader:
    """What a worker must know before it unpacks a body.

    Attributes:
        model: First 8 bytes of the bundle's model hash.
        cut: Index of the split in the manifest.
        spec: Shape, layout, dtype, scale and zero point of the tensor.
        sample: 8 opaque bytes, unique for the device for all time.
        captured_at: Unix time in microseconds.
        label: The device's provisional class index.
        entropy: The device's normalized entropy, 0 to 1.
    """

    model: bytes
    cut: int
    spec: TensorSpec
    sample: bytes
    captured_at: int
    label: int
    entropy: float


@dataclass(frozen=True)
class FeatureMessage:
    """One low-confidence sample: its header and the quantized features of one cut.

    Attributes:
        header: See `FeatureHeader`.
        features: Shape ``header.spec.shape``, dtype ``header.spec.dtype``.
    """

    header: FeatureHeader
    features: NDArray[np.generic]

    def encode(self) -> bytes:
        """Return header + packed body + CRC-32."""
        h, spec = self.header, self.header.spec
        if self.features.shape != spec.shape or self.features.dtype != np.dtype(spec.dtype):
            raise ValueError(
                f"features are {self.features.dtype}{self.features.shape}, "
                f"the spec says {spec.dtype}{spec.shape}"
            )
        _check_ids(h.model, h.sample)
        raw = np.ascontiguousarray(self.features).tobytes()
        codec, body = compress(raw)
        shape = (*spec.shape, 0, 0)[:3]
        head = _FEATURE.pack(
            _FEATURE_MAGIC,
            VERSION,
            _FEATURE.size,
            h.model,
            h.cut,
            codec,
            DTYPES.index(spec.dtype),
            LAYOUTS.index(spec.layout),
            len(spec.shape),
            *shape,
            spec.scale,
            spec.zero_point,
            h.sample,
            h.captured_at,
            h.label,
            h.entropy,
        )
        return _seal(head + body)

    @classmethod
    def decode(cls, data: bytes, limit: int = MAX_VALUES) -> FeatureMessage:
        """Read a message of at most `limit` values.

        Raises:
            DecodeError: With the reason in one word and the sentence.
        """
        header, codec, body = split_features(data, limit)
        raw = expand(codec, body, header.spec.nbytes)
        features = np.frombuffer(raw, dtype=header.spec.dtype).reshape(header.spec.shape)
        return cls(header, features)


def split_features(data: bytes, limit: int = MAX_VALUES) -> tuple[FeatureHeader, int, bytes]:
    """Check a feature message and return its header, codec and still packed body.

    Raises:
        DecodeError: The frame is broken or announces more than `limit` values.
    """
    body_at = _open(data, _FEATURE_MAGIC, _FEATURE)
    (
        _magic, _version, _length, model, cut, codec, dtype, layout, rank, *shape,
        scale, zero_point, sample, captured_at, label, entropy,
    ) = _FEATURE.unpack_from(data)  # fmt: skip
    if dtype >= len(DTYPES) or layout >= len(LAYOUTS) or not 1 <= rank <= 3:
        raise DecodeError("header", "dtype, layout or rank is out of range")
    if any(shape[rank:]) or math.prod(shape[:rank]) > limit:
        raise DecodeError("shape", f"shape {shape} is over the limit of {limit} values")
    if not (0.0 <= entropy <= 1.0):
        raise DecodeError("header", f"entropy {entropy} lies outside 0 to 1")
    try:
        spec = TensorSpec(
            "features", tuple(shape[:rank]), LAYOUTS[layout], DTYPES[dtype], scale, zero_point
        )
    except ValueError as error:
        raise DecodeError("header", str(error)) from None
    header = FeatureHeader(model, cut, spec, sample, captured_at, label, entropy)
    return header, codec, data[body_at : -_CRC.size]


def claimed_model(data: bytes) -> bytes | None:
    """Return the model hash of a feature message that may be broken; None when it is none."""
    return data[6:14] if data[:4] == _FEATURE_MAGIC and len(data) >= _FEATURE.size else None


@dataclass(frozen=True)
class ResultMessage:
    """A worker's answer to one sample.

    Attributes:
        model: First 8 bytes of the model hash.
        sample: The sample id of the features.
        refusal: `Refusal.NONE` when the sample was classified.
        label: Class index.
        confidence: Probability of that class.
        entropy: Normalized entropy of the cloud exit, 0 to 1.
        engine_us: Time that the batch spent in the engine, microseconds.
        batch: Samples in that batch.
        probabilities: One float16 a class; empty on refusal.
    """

    model: bytes
    sample: bytes
    refusal: Refusal = Refusal.NONE
    label: int = 0
    confidence: float = 0.0
    entropy: float = 1.0
    engine_us: int = 0
    batch: int = 0
    probabilities: tuple[float, ...] = ()

    def encode(self) -> bytes:
        """Return header + probabilities + CRC-32."""
        _check_ids(self.model, self.sample)
        head = _RESULT.pack(
            _RESULT_MAGIC,
            VERSION,
            _RESULT.size,
            self.model,
            self.sample,
            self.refusal,
            self.label,
            self.confidence,
            self.entropy,
            min(self.engine_us, 0xFFFFFFFF),
            self.batch,
            len(self.probabilities),
        )
        return _seal(head + np.asarray(self.probabilities, dtype="<f2").tobytes())

    @classmethod
    def decode(cls, data: bytes) -> ResultMessage:
        """Read a result.

        Raises:
            DecodeError: With the reason in one word and the sentence.
        """
        body_at = _open(data, _RESULT_MAGIC, _RESULT)
        (
            _magic, _version, _length, model, sample, refusal, label, confidence, entropy,
            engine_us, batch, count,
        ) = _RESULT.unpack_from(data)  # fmt: skip
        body = data[body_at : -_CRC.size]
        if len(body) != 2 * count:
            raise DecodeError("size", f"{count} probabilities need {2 * count} bytes")
        if refusal not in Refusal.__members__.values():
            raise DecodeError("header", f"refusal {refusal} is unknown")
        if not (0 <= confidence <= 1 and 0 <= entropy <= 1):
            raise DecodeError("header", "confidence or entropy lies outside 0 to 1")
        if count and label >= count:
            raise DecodeError("header", f"label {label} is not below {count} classes")
        p = tuple(float(v) for v in np.frombuffer(body, dtype="<f2"))
        if not all(0 <= v <= 1 for v in p):
            raise DecodeError("header", "a probability lies outside 0 to 1")
        return cls(model, sample, Refusal(refusal), label, confidence, entropy, engine_us, batch, p)


def _check_ids(model: bytes, sample: bytes) -> None:
    # struct would cut or pad them silently, and a sample would answer to another one's name.
    if len(model) != 8 or len(sample) != 8:
        raise ValueError("model hash and sample id are 8 bytes each on the wire")


def _seal(data: bytes) -> bytes:
    return data + _CRC.pack(zlib.crc32(data))


def _open(data: bytes, magic: bytes, layout: struct.Struct) -> int:
    """Check frame, version and CRC; return where the body starts."""
    if len(data) < layout.size + _CRC.size:
        raise DecodeError("short", f"{len(data)} bytes are too few for a message")
    if data[:4] != magic:
        raise DecodeError("magic", f"the message does not start with {magic.decode()}")
    if zlib.crc32(memoryview(data)[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - 4)[0]:
        raise DecodeError("crc", "the CRC-32 does not match: the message was damaged")
    if data[4] != VERSION:
        raise DecodeError("version", f"version {data[4]} is not {VERSION}; update this reader")
    length = data[5]
    if not layout.size <= length <= len(data) - _CRC.size:
        raise DecodeError("header", f"a header of {length} bytes does not fit")
    return length


@dataclass(frozen=True)
class Topics:
    """The five topics of one device.

    Attributes:
        device: Device id: 1 to 64 characters of ``A-Z a-z 0-9 . _ -``.
    """

    device: str

    def __post_init__(self) -> None:
        if _DEVICE.fullmatch(self.device) is None:
            raise ValueError(
                f"device id {self.device!r} must be 1 to 64 of the characters A-Z a-z 0-9 . _ -"
            )

    @property
    def features(self) -> str:
        """Device to workers, QoS 1."""
        return f"edgekit/1/{self.device}/features"

    @property
    def results(self) -> str:
        """Workers to device, QoS 1."""
        return f"edgekit/1/{self.device}/results"

    @property
    def state(self) -> str:
        """Counters, QoS 0."""
        return f"edgekit/1/{self.device}/state"

    @property
    def status(self) -> str:
        """``online`` or ``offline`` with details, JSON, retained, last will."""
        return f"edgekit/1/{self.device}/status"

    @property
    def desired(self) -> str:
        """What an operator wants of the device, retained."""
        return f"edgekit/1/{self.device}/desired"

    @classmethod
    def of(cls, topic: str) -> Topics:
        """Return the topics of the device that `topic` belongs to.

        Raises:
            ValueError: It is not a topic of this protocol.
        """
        parts = topic.split("/")
        if len(parts) != 4 or parts[:2] != ["edgekit", "1"]:
            raise ValueError(f"{topic!r} is not edgekit/1/<device>/<kind>")
        return cls(parts[2])


def shared_filter(pool: str) -> str:
    """Return the shared subscription of a pool of workers (MQTT 5, section 4.8.2)."""
    return f"$share/{pool}/edgekit/1/+/features"
