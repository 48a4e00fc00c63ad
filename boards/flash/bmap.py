"""Block maps: which blocks of an image hold data, and their SHA-256.

The format is bmaptool's XML, version 2.0, as its own documentation describes it: block size, image
size, ranges of mapped blocks with a checksum each, and a checksum of the file itself, taken with
its own digits as zeros. The reader and the writer are our own, two screens of code without a
dependency.
"""

from __future__ import annotations

import hashlib
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edge_kit.errors import ImageError

__all__ = ["BlockMap", "Range", "find_map", "make_map", "parse_map", "read_map", "whole_map"]

VERSION = "2.0"
BLOCK = 4096
_CHUNK = 4 << 20
_ZEROS = "0" * 64
_DIGEST = re.compile(r"[0-9a-f]{64}")
_OWN = re.compile(rb"(<BmapFileChecksum>\s*)([0-9a-f]{64})(\s*</BmapFileChecksum>)")


@dataclass(frozen=True)
class Range:
    """A run of mapped bytes.

    Attributes:
        start: Offset of the first byte.
        stop: Offset behind the last byte.
        sha256: Of these bytes, hexadecimal; empty where nobody took it.
    """

    start: int
    stop: int
    sha256: str = ""


@dataclass(frozen=True)
class BlockMap:
    """What of an image has to be written.

    Attributes:
        image_size: Bytes.
        block_size: Bytes; ranges begin at multiples of it.
        ranges: In order, not overlapping.
    """

    image_size: int
    block_size: int
    ranges: tuple[Range, ...]

    @property
    def mapped(self) -> int:
        """Return the bytes that have to be written."""
        return sum(r.stop - r.start for r in self.ranges)

    def encode(self) -> bytes:
        """Return the XML file."""
        blocks = -(-self.image_size // self.block_size)
        mapped = sum(-(-(r.stop - r.start) // self.block_size) for r in self.ranges)
        root = ET.Element("bmap", version=VERSION)
        for name, value in (
            ("ImageSize", self.image_size),
            ("BlockSize", self.block_size),
            ("BlocksCount", blocks),
            ("MappedBlocksCount", mapped),
            ("ChecksumType", "sha256"),
            ("BmapFileChecksum", _ZEROS),
        ):
            ET.SubElement(root, name).text = str(value)
        block_map = ET.SubElement(root, "BlockMap")
        for run in self.ranges:
            first, last = run.start // self.block_size, (run.stop - 1) // self.block_size
            row = ET.SubElement(block_map, "Range", chksum=run.sha256)
            row.text = str(first) if first == last else f"{first}-{last}"
        ET.indent(root)
        text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"
        return text.replace(_ZEROS.encode(), hashlib.sha256(text).hexdigest().encode(), 1)


def whole_map(size: int) -> BlockMap:
    """Return the map of an image of which everything is written."""
    return BlockMap(size, BLOCK, (Range(0, size),) if size else ())


def find_map(image: Path) -> Path | None:
    """Return the map beside an image: ``a.img.xz.bmap``, ``a.img.bmap`` or ``a.bmap``."""
    stem = image.name
    while True:
        beside = image.with_name(f"{stem}.bmap")
        if beside.is_file():
            return beside
        shorter = Path(stem).stem
        if shorter == stem:
            return None
        stem = shorter


def read_map(file: Path) -> BlockMap:
    """Read a ``.bmap`` file.

    Raises:
        ImageError: It is missing, damaged or of another version.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ImageError(f"{file} cannot be read: {error.strerror or error}") from None
    try:
        return parse_map(data)
    except ImageError as error:
        raise ImageError(
            f"{file} is not a valid block map: {error}",
            "fetch it again, or write the whole image with --no-bmap",
        ) from None


def parse_map(data: bytes) -> BlockMap:
    """Read the XML.

    Raises:
        ImageError: It is damaged or of another version.
    """
    try:
        root = ET.fromstring(data)
    except (ET.ParseError, ValueError, LookupError) as error:
        raise ImageError(f"it is not XML ({error})") from None
    version = root.get("version", "none")
    if root.tag != "bmap" or not version.startswith("2."):
        raise ImageError(f"its version is {version}, and 2.0 is needed")
    if (kind := _text(root, "ChecksumType")) != "sha256":
        raise ImageError(f"its checksums are {kind[:20]!r}, and sha256 is needed")
    _check_own(data)
    size, block = _number(root, "ImageSize"), _number(root, "BlockSize")
    rows = root.findall("BlockMap/Range")
    return BlockMap(size, block, tuple(_range(row, size, block) for row in rows))


def make_map(image: Path) -> BlockMap:
    """Map a raw image by the holes of its file; blocks within data that are zero stay mapped.

    Raises:
        ImageError: It cannot be read.
    """
    try:
        with image.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            return BlockMap(size, BLOCK, tuple(_data_runs(file.fileno(), size)))
    except OSError as error:
        raise ImageError(f"{image} cannot be read: {error.strerror or error}") from None


def _data_runs(fd: int, size: int) -> Iterator[Range]:
    at = 0
    while at < size:
        try:
            data = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return  # ENXIO: only a hole is left
        hole = os.lseek(fd, data, os.SEEK_HOLE)
        start = max(at, data - data % BLOCK)
        stop = min(size, -(-hole // BLOCK) * BLOCK)
        yield Range(start, stop, _digest(fd, start, stop))
        at = stop


def _digest(fd: int, start: int, stop: int) -> str:
    digest = hashlib.sha256()
    while start < stop:
        piece = os.pread(fd, min(_CHUNK, stop - start), start)
        if not piece:
            raise OSError("the file became shorter")
        digest.update(piece)
        start += len(piece)
    return digest.hexdigest()


def _check_own(data: bytes) -> None:
    found = _OWN.search(data)
    if found is None:
        raise ImageError("it has no checksum of its own")
    blank = data[: found.start(2)] + _ZEROS.encode() + data[found.end(2) :]
    if hashlib.sha256(blank).hexdigest().encode() != found[2]:
        raise ImageError("its own checksum differs, so it is damaged")


def _range(row: ET.Element, size: int, block: int) -> Range:
    text = (row.text or "").strip()
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    digest = row.get("chksum", "")
    if found is None or not _DIGEST.fullmatch(digest):
        raise ImageError(f"its range {text!r} has no block numbers or no SHA-256")
    first, last = int(found[1]), int(found[2] or found[1])
    start, stop = first * block, min((last + 1) * block, size)
    if not start < stop:
        raise ImageError(f"its range {text} is outside the image")
    return Range(start, stop, digest)


def _text(root: ET.Element, name: str) -> str:
    return (root.findtext(name) or "").strip()


def _number(root: ET.Element, name: str) -> int:
    text = _text(root, name)
    if not text.isdecimal():
        raise ImageError(f"{name} is {text!r}, not a number")
    return int(text)
