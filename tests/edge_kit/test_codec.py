from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_kit.codec import Codec, compress, expand
from edge_kit.errors import DecodeError


def deflate(raw: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(raw) + packer.flush()


@given(st.binary(max_size=4096))
def test_packed_body_expands_to_itself(raw):
    codec, body = compress(raw)
    assert len(body) <= len(raw)
    assert expand(codec, body, len(raw)) == raw


@given(st.lists(st.integers(-8, 7), min_size=64, max_size=2048))
def test_few_levels_pack_close_to_their_entropy(levels):
    raw = np.array(levels, np.int8).tobytes()
    _codec, body = compress(raw)
    counts = np.unique(levels, return_counts=True)[1] / len(levels)
    bits = -(counts * np.log2(counts)).sum() * len(levels)
    # Huffman loses under one bit a symbol; a block's code lengths take under 60 bytes.
    assert len(body) <= bits / 8 + len(raw) / 8 + 60


def test_noise_is_sent_raw():
    raw = np.random.default_rng(1).bytes(2000)
    assert compress(raw) == (Codec.RAW, raw)


def test_golden_bodies_expand():
    # Packers may differ between zlib builds, so only reading is held to fixed bytes.
    assert expand(1, bytes.fromhex("63200000"), 32) == bytes(32)
    assert expand(1, bytes.fromhex("0103 00fc ff 010203"), 3) == b"\x01\x02\x03"
    assert expand(0, b"\x01\xff", 2) == b"\x01\xff"


@pytest.mark.parametrize(
    ("codec", "body", "reason"),
    [
        (0, bytes(7), "size"),
        (0, bytes(9), "size"),
        (1, deflate(bytes(7)), "size"),
        (1, deflate(bytes(9)), "size"),
        (1, deflate(bytes(8))[:-1], "size"),
        (1, deflate(bytes(8)) + b"x", "size"),
        (1, b"", "size"),
        (1, b"\xff\xff\xff", "deflate"),
        (1, zlib.compress(bytes(8)), "deflate"),
        (2, bytes(8), "codec"),
        (255, bytes(8), "codec"),
    ],
)
def test_damaged_body_raises_its_reason(codec, body, reason):
    with pytest.raises(DecodeError) as caught:
        expand(codec, body, 8)
    assert caught.value.reason == reason


@given(st.integers(0, 255), st.binary(max_size=256), st.integers(1, 512))
def test_any_bytes_expand_to_the_announced_size_or_raise(codec, body, size):
    try:
        assert len(expand(codec, body, size)) == size
    except DecodeError as error:
        assert error.reason in {"size", "deflate", "codec"}


def test_bomb_needs_no_more_memory_than_its_announced_size():
    bomb = deflate(bytes(200_000_000))
    tracemalloc.start()
    with pytest.raises(DecodeError):
        expand(Codec.DEFLATE, bomb, 1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 + len(bomb)  # zlib keeps the unread input
