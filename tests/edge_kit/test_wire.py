from __future__ import annotations

import re
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_kit import wire
from edge_kit.errors import DecodeError
from edge_kit.tensors import DTYPES, TensorSpec
from edge_kit.wire import FeatureHeader, FeatureMessage, Refusal, ResultMessage, Topics

MODEL = bytes(range(8))
SPEC = TensorSpec("features", (2, 2, 2), "NCHW", "int8", 0.25, -3)
HEADER = FeatureHeader(MODEL, 1, SPEC, b"sample01", 1_700_000_000_123_456, 7, 0.625)
MESSAGE = FeatureMessage(
    HEADER, np.array([1, -2, 3, -4, 5, -6, 7, -8], np.int8).reshape(SPEC.shape)
)
# Written once; a reader of version 1 must always understand them.
FEATURE_GOLDEN = bytes.fromhex(
    "454b4631 01 35 0001020304050607 01 00 00 00 03 0200 0200 0200 0000803e fdff"
    "73616d706c653031 40222018240a0600 0700 0000203f 01fe03fc05fa07f8 c6094e84"
)
RESULT = ResultMessage(
    MODEL, b"sample01", Refusal.NONE, 2, 0.75, 0.5, 1234, 3, (0.125, 0.125, 0.75)
)
RESULT_GOLDEN = bytes.fromhex(
    "454b5231 01 29 0001020304050607 73616d706c653031 00 0200 0000403f 0000003f"
    "d2040000 0300 0300 0030 0030 003a 63fa4df0"
)


def sealed(data: bytes) -> bytes:
    """End `data` with the right CRC, as a sender with a bug would."""
    return data + zlib.crc32(data).to_bytes(4, "little")


def patched(data: bytes, at: int, value: bytes) -> bytes:
    return sealed(data[:at] + value + data[at + len(value) : -4])


@st.composite
def messages(draw) -> FeatureMessage:
    layout = draw(st.sampled_from(["NCHW", "NHWC", "NC"]))
    rank = len(layout) - 1
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=rank, max_size=rank)))
    dtype = draw(st.sampled_from(DTYPES))
    scale = draw(st.floats(2**-20, 2**20, width=32))
    spec = TensorSpec("features", shape, layout, dtype, scale, draw(st.integers(-128, 255)))
    levels = draw(st.integers(1, 200))
    seed = draw(st.integers(0, 2**32 - 1))
    values = np.random.default_rng(seed).integers(0, levels, shape).astype(dtype)
    header = FeatureHeader(
        draw(st.binary(min_size=8, max_size=8)),
        draw(st.integers(0, 255)),
        spec,
        draw(st.binary(min_size=8, max_size=8)),
        draw(st.integers(-(2**63), 2**63 - 1)),
        draw(st.integers(0, 65535)),
        draw(st.floats(0, 1, width=32)),
    )
    return FeatureMessage(header, values)


RESULTS = st.builds(
    ResultMessage,
    st.binary(min_size=8, max_size=8),
    st.binary(min_size=8, max_size=8),
    st.sampled_from(Refusal),
    st.integers(0, 1),
    st.floats(0, 1, width=32),
    st.floats(0, 1, width=32),
    st.integers(0, 2**32 - 1),
    st.integers(0, 65535),
    st.lists(st.floats(0, 1, width=16), min_size=2, max_size=40).map(tuple),
)


def test_feature_message_encodes_to_the_golden_bytes():
    assert MESSAGE.encode() == FEATURE_GOLDEN


def test_golden_feature_bytes_decode():
    read = FeatureMessage.decode(FEATURE_GOLDEN)
    assert read.header == HEADER
    assert np.array_equal(read.features, MESSAGE.features)


def test_result_encodes_to_the_golden_bytes_and_decodes():
    assert RESULT.encode() == RESULT_GOLDEN
    assert ResultMessage.decode(RESULT_GOLDEN) == RESULT


@given(messages())
def test_any_feature_message_survives_encoding(message):
    read = FeatureMessage.decode(message.encode())
    assert read.header == message.header
    assert read.features.dtype == message.features.dtype
    assert np.array_equal(read.features, message.features)


@given(RESULTS)
def test_any_result_survives_encoding(result):
    assert ResultMessage.decode(result.encode()) == result


def test_refusal_without_probabilities_survives_encoding():
    refusal = ResultMessage(MODEL, b"sample01", Refusal.UNKNOWN_MODEL)
    assert ResultMessage.decode(refusal.encode()) == refusal


@pytest.mark.parametrize("golden", [FEATURE_GOLDEN, RESULT_GOLDEN])
def test_every_flipped_bit_is_refused(golden):
    decode = FeatureMessage.decode if golden is FEATURE_GOLDEN else ResultMessage.decode
    for bit in range(8 * len(golden)):
        damaged = bytearray(golden)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DecodeError):
            decode(bytes(damaged))


@pytest.mark.parametrize("golden", [FEATURE_GOLDEN, RESULT_GOLDEN])
def test_every_truncation_and_extension_is_refused(golden):
    decode = FeatureMessage.decode if golden is FEATURE_GOLDEN else ResultMessage.decode
    for length in range(len(golden)):
        with pytest.raises(DecodeError):
            decode(golden[:length])
    with pytest.raises(DecodeError):
        decode(golden + b"\0")


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_after_the_magic_raise_decode_errors_only(noise, result):
    magic, decode = (b"EKR1", ResultMessage.decode) if result else (b"EKF1", FeatureMessage.decode)
    with pytest.raises(DecodeError):
        decode(noise)
    with pytest.raises(DecodeError):
        decode(magic + noise)


@given(st.binary(min_size=1, max_size=48), st.integers(6, len(FEATURE_GOLDEN) - 5))
def test_wrong_field_with_valid_crc_decodes_or_is_refused(junk, at):
    data = patched(FEATURE_GOLDEN, at, junk[: len(FEATURE_GOLDEN) - 4 - at])
    try:
        read = FeatureMessage.decode(data, limit=1000)
    except DecodeError as error:
        assert error.reason
    else:
        assert read.features.shape == read.header.spec.shape
        assert 0 <= read.header.entropy <= 1


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (0, b"EKF2", "magic"),
        (4, b"\x02", "version"),
        (5, b"\x34", "header"),
        (5, b"\xff", "header"),
        (15, b"\x09", "codec"),
        (16, b"\x05", "header"),
        (17, b"\x03", "header"),
        (17, b"\x02", "header"),
        (18, b"\x00", "header"),
        (18, b"\x04", "header"),
        (18, b"\x02", "shape"),
        (19, b"\xff\xff\xff\xff\xff\xff", "shape"),
        (19, b"\x00\x00", "header"),
        (19, b"\x03\x00", "size"),
        (25, struct.pack("<f", 0.0), "header"),
        (25, struct.pack("<f", float("nan")), "header"),
        (49, struct.pack("<f", 1.5), "header"),
        (49, struct.pack("<f", float("nan")), "header"),
    ],
)
def test_wrong_feature_field_has_its_reason(at, value, reason):
    with pytest.raises(DecodeError) as caught:
        FeatureMessage.decode(patched(FEATURE_GOLDEN, at, value))
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("at", "value", "reason"),
    [
        (4, b"\x02", "version"),
        (22, b"\x63", "header"),
        (23, b"\x03\x00", "header"),
        (25, struct.pack("<f", -0.5), "header"),
        (29, struct.pack("<f", float("inf")), "header"),
        (39, b"\x04\x00", "size"),
        (41, b"\x00\x7e", "header"),
        (41, b"\x00\xbc", "header"),
    ],
)
def test_wrong_result_field_has_its_reason(at, value, reason):
    with pytest.raises(DecodeError) as caught:
        ResultMessage.decode(patched(RESULT_GOLDEN, at, value))
    assert caught.value.reason == reason


@pytest.mark.parametrize("golden", [FEATURE_GOLDEN, RESULT_GOLDEN])
def test_longer_header_of_a_newer_writer_is_read(golden):
    decode = FeatureMessage.decode if golden is FEATURE_GOLDEN else ResultMessage.decode
    size = golden[5]
    later = golden[:5] + bytes([size + 3]) + golden[6:size] + b"new" + golden[size:-4]
    read = decode(sealed(later))
    if isinstance(read, ResultMessage):
        assert read == RESULT
    else:
        assert read.header == HEADER


def test_size_limit_is_checked_before_unpacking():
    with pytest.raises(DecodeError) as caught:
        FeatureMessage.decode(FEATURE_GOLDEN, limit=7)
    assert caught.value.reason == "shape"
    assert FeatureMessage.decode(FEATURE_GOLDEN, limit=8).header == HEADER


@pytest.mark.parametrize("features", [np.zeros((2, 2), np.int8), np.zeros((2, 2, 2), np.uint8)])
def test_features_that_do_not_fit_their_spec_are_refused(features):
    with pytest.raises(ValueError, match="spec says"):
        FeatureMessage(HEADER, features).encode()


@pytest.mark.parametrize("wrong", [b"", b"short", b"too long!"])
def test_ids_of_wrong_length_are_refused(wrong):
    with pytest.raises(ValueError, match="8 bytes"):
        FeatureMessage(replace(HEADER, sample=wrong), MESSAGE.features).encode()
    with pytest.raises(ValueError, match="8 bytes"):
        replace(RESULT, model=wrong).encode()


def test_engine_time_saturates_at_its_field():
    slow = replace(RESULT, engine_us=2**40)
    assert ResultMessage.decode(slow.encode()).engine_us == 2**32 - 1


def test_topics_contain_the_device_id():
    topics = Topics("cam-7.a_b")
    assert topics.features == "edgekit/1/cam-7.a_b/features"
    kinds = [topics.features, topics.results, topics.state, topics.status, topics.desired]
    assert len(set(kinds)) == 5
    assert {Topics.of(topic) for topic in kinds} == {topics}
    assert wire.shared_filter("p") == "$share/p/edgekit/1/+/features"


@pytest.mark.parametrize("device", ["", "a" * 65, "a/b", "a+b", "#", "a b", "ü", "a\0"])
def test_device_id_not_allowed_in_topics_is_refused(device):
    with pytest.raises(ValueError, match="device id"):
        Topics(device)


@pytest.mark.parametrize(
    "topic", ["", "edgekit/1/a", "edgekit/2/a/results", "x/1/a/b", "edgekit/1/a/b/c"]
)
def test_topic_of_another_protocol_is_refused(topic):
    with pytest.raises(ValueError, match="edgekit/1"):
        Topics.of(topic)


ROW = re.compile(r"^\| (\d+) \| (\d+) \| `([^`]+)` \|", re.MULTILINE)


@pytest.mark.parametrize(
    ("title", "layout"),
    [("Feature message", wire._FEATURE), ("Result message", wire._RESULT)],
)
def test_documented_byte_tables_match_the_structs(title, layout):
    text = (Path(__file__).parents[2] / "docs/wire-format.md").read_text(encoding="utf-8")
    section = text.split(f"## {title}")[1].split("\n## ")[0]
    rows = [(int(at), int(size), code) for at, size, code in ROW.findall(section)]
    end = 0
    for offset, size, code in rows:
        assert offset == end
        assert size == struct.calcsize("<" + code)
        end += size
    assert end == layout.size
    assert "<" + "".join(code for _, _, code in rows) == layout.format


def test_documented_bytes_are_the_golden_ones():
    text = (Path(__file__).parents[2] / "docs/wire-format.md").read_text(encoding="utf-8")
    dumps = ["".join(b.split()) for b in re.findall(r"```hex\n(.*?)```", text, re.DOTALL)]
    assert dumps == [FEATURE_GOLDEN.hex(), RESULT_GOLDEN.hex()]
