"""Block maps: what bmaptool writes we read, and the other way round."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boards.flash.bmap import BlockMap, Range, find_map, make_map, parse_map, read_map, whole_map
from edge_kit.errors import ImageError

BMAPTOOL = shutil.which("bmaptool")


def sparse(path):
    """An image of 1 MiB less 100 bytes: data in blocks 0, 5, 6 and the last."""
    with path.open("wb") as file:
        file.write(bytes(range(256)) * 16)
        file.seek(5 * 4096)
        file.write(b"edge" * 2048)
        file.seek((1 << 20) - 4096)
        file.write(b"\xa5" * 3996)
    return path


def test_map_leaves_out_the_holes_of_a_file(tmp_path):
    found = make_map(sparse(tmp_path / "a.img"))
    data = (tmp_path / "a.img").read_bytes()
    assert [(r.start, r.stop) for r in found.ranges] == [
        (0, 4096), (20480, 28672), ((1 << 20) - 4096, (1 << 20) - 100),
    ]  # fmt: skip
    assert all(hashlib.sha256(data[r.start : r.stop]).hexdigest() == r.sha256 for r in found.ranges)
    assert found.mapped == 4 * 4096 - 100


def test_map_of_an_empty_sparse_file_has_no_ranges(tmp_path):
    (tmp_path / "a.img").touch()
    os.truncate(tmp_path / "a.img", 1 << 20)
    assert make_map(tmp_path / "a.img").ranges == ()


@given(st.lists(st.integers(1, 50), max_size=12), st.sampled_from([512, 4096]), st.integers(0, 511))
def test_map_survives_encoding(steps, block, short):
    # Lengths of holes and data in turn; the last block may be cut short.
    ranges, at = [], 0
    for hole, data in zip(steps[::2], steps[1::2], strict=False):
        ranges.append(Range((at + hole) * block, (at + hole + data) * block, "ab" * 32))
        at += hole + data
    size = at * block
    if ranges:
        size -= short
        ranges[-1] = Range(ranges[-1].start, size, "ab" * 32)
    whole = BlockMap(size, block, tuple(ranges))
    assert parse_map(whole.encode()) == whole


def test_changed_byte_of_a_map_is_noticed(tmp_path):
    good = make_map(sparse(tmp_path / "a.img"))
    data = good.encode()
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(ImageError):
            parse_map(changed)


def test_truncated_map_is_noticed(tmp_path):
    data = make_map(sparse(tmp_path / "a.img")).encode().rstrip()
    for end in range(len(data)):
        with pytest.raises(ImageError):
            parse_map(data[:end])


def signed(text: str) -> bytes:
    """Put the right checksum into a map that was edited."""
    blank = re.sub("(?<=<BmapFileChecksum>)[0-9a-f]{64}", "0" * 64, text)
    return blank.replace("0" * 64, hashlib.sha256(blank.encode()).hexdigest(), 1).encode()


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('version="2.0"', 'version="1.3"', "version is 1.3"),
        ('version="2.0"', 'version="3.0"', "version is 3.0"),
        (">sha256<", ">md5<", "'md5', and sha256 is needed"),
        (">4096<", ">x<", "BlockSize is 'x', not a number"),
        (">255<", ">256<", "outside the image"),
        ("chksum=", "sum=", "no SHA-256"),
    ],
)
def test_map_of_another_version_or_image_is_refused(tmp_path, old, new, sentence):
    text = make_map(sparse(tmp_path / "a.img")).encode().decode()
    assert old in text
    assert parse_map(signed(text))
    with pytest.raises(ImageError, match=sentence):
        parse_map(signed(text.replace(old, new)))


def test_map_with_blanks_and_comments_is_read(tmp_path):
    good = make_map(sparse(tmp_path / "a.img"))
    text = good.encode().decode().replace(">5-6<", "> 5-6 <")
    assert parse_map(signed(text.replace("<BlockMap>", "<!-- 16 KiB --><BlockMap>"))) == good


def test_map_beside_an_image_is_found(tmp_path):
    image = tmp_path / "a.b.img.xz"
    assert find_map(image) is None
    for name in ("a.bmap", "a.b.img.bmap", "a.b.img.xz.bmap"):  # the closer name wins
        (tmp_path / name).touch()
        assert find_map(image) == tmp_path / name


def test_unreadable_map_says_what_to_do(tmp_path):
    with pytest.raises(ImageError, match="cannot be read"):
        read_map(tmp_path / "none.bmap")
    (tmp_path / "a.bmap").write_text("<bmap>")
    with pytest.raises(ImageError, match=r"a\.bmap is not a valid block map: .*--no-bmap"):
        read_map(tmp_path / "a.bmap")


def test_whole_map_covers_all():
    assert whole_map(10).ranges == (Range(0, 10),)
    assert whole_map(0).ranges == ()


@pytest.mark.skipif(BMAPTOOL is None, reason="bmaptool is not installed (Debian: bmap-tools)")
def test_bmaptool_reads_our_maps_and_we_read_its(tmp_path):
    image = sparse(tmp_path / "a.img")
    subprocess.run([BMAPTOOL, "create", image, "-o", tmp_path / "theirs"], check=True)
    assert read_map(tmp_path / "theirs") == make_map(image)

    (tmp_path / "ours.bmap").write_bytes(make_map(image).encode())
    (tmp_path / "copy.img").touch()
    subprocess.run(
        [BMAPTOOL, "copy", "--bmap", tmp_path / "ours.bmap", image, tmp_path / "copy.img"],
        check=True, capture_output=True,
    )  # fmt: skip
    assert (tmp_path / "copy.img").read_bytes()[: 1 << 20] == image.read_bytes()
