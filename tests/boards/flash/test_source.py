"""Images as streams: raw, xz and gzip, whole and damaged."""

from __future__ import annotations

import gzip
import lzma
import random

import pytest

from boards.flash.source import CHUNK, open_source
from edge_kit.errors import ImageError

PACKERS = {
    "raw": lambda data: data,
    "xz": lambda data: lzma.compress(data, preset=0),
    "gzip": lambda data: gzip.compress(data, 1),
}
# Over two chunks and no multiple of anything.
DATA = random.Random(1).randbytes(1 << 16) * 129 + b"end"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    for name, packer in PACKERS.items():
        (folder / name).write_bytes(packer(DATA))
    return folder


@pytest.mark.parametrize("packing", PACKERS)
def test_packed_image_gives_the_bytes_of_the_raw_one(images, packing):
    source = open_source(images / packing)
    assert (source.packing, source.size) == (packing, len(DATA))
    chunks = list(source.chunks())
    assert b"".join(c.data for c in chunks) == DATA
    assert [c.offset for c in chunks] == list(range(0, len(DATA), CHUNK))


def test_raw_image_is_read_only_where_wanted(images):
    source = open_source(images / "raw")
    last = len(DATA) - 1
    for wanted, offsets in (
        ([], []), ([(0, 1)], [0]), ([(5, 6), (CHUNK - 1, CHUNK + 1)], [0, CHUNK]),
        ([(last, last + 1)], [last - last % CHUNK]), ([(1, 2), (3, 4), (CHUNK, CHUNK)], [0]),
    ):  # fmt: skip
        found = list(source.chunks(wanted))
        assert [c.offset for c in found] == offsets
        assert all(c.data == DATA[c.offset : c.offset + CHUNK] for c in found)


def test_size_of_an_xz_of_several_streams_is_their_sum(tmp_path):
    file = tmp_path / "a.xz"
    file.write_bytes(b"".join(lzma.compress(bytes(n), preset=0) for n in (1, 0, 70_000)))
    assert open_source(file).size == 70_001


@pytest.mark.parametrize("cut", [1, 4, 100, 5000])
def test_truncated_xz_is_refused_when_opened(images, tmp_path, cut):
    file = tmp_path / "a.xz"
    file.write_bytes((images / "xz").read_bytes()[:-cut])
    with pytest.raises(ImageError, match="truncated or damaged"):
        open_source(file)


@pytest.mark.parametrize("cut", [1, 8, 5000])
def test_truncated_gzip_is_refused_when_opened(images, tmp_path, cut):
    file = tmp_path / "a.gz"
    file.write_bytes((images / "gzip").read_bytes()[:-cut])
    with pytest.raises(ImageError, match="truncated or damaged"):
        open_source(file)


@pytest.mark.parametrize("packing", ["xz", "gzip"])
def test_flipped_byte_in_a_packed_image_is_noticed(images, tmp_path, packing):
    data = bytearray((images / packing).read_bytes())
    data[len(data) // 2] ^= 0x10
    file = tmp_path / "a"
    file.write_bytes(data)
    with pytest.raises(ImageError, match="truncated or damaged"):
        list(open_source(file).chunks())


@pytest.mark.parametrize("change", [DATA[:-1], DATA + b"x", b""])
def test_image_that_changes_while_read_is_noticed(tmp_path, change):
    file = tmp_path / "a"
    file.write_bytes(DATA)
    source = open_source(file)
    file.write_bytes(change)
    with pytest.raises(ImageError, match="another size"):
        list(source.chunks())


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "is empty"),
        (lzma.compress(b""), "is empty"),
        (b"\x28\xb5\x2f\xfd....", "packed with zstd; unpack it"),
        (b"PK\x03\x04....", "packed with zip"),
    ],
)
def test_empty_or_unknown_image_is_an_error(tmp_path, data, sentence):
    file = tmp_path / "a"
    file.write_bytes(data)
    with pytest.raises(ImageError, match=sentence):
        open_source(file)


def test_path_without_a_file_is_an_error(tmp_path):
    with pytest.raises(ImageError, match="there is no image"):
        open_source(tmp_path / "none")
    with pytest.raises(ImageError, match="is not a file"):
        open_source(tmp_path)
