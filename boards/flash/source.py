"""An image as a stream of bytes, whatever packs it, and how many they are.

The size is known before the first byte is written to a card: of a raw file from the file system, of
xz from its index, of gzip by unpacking it once, since its own note of the size wraps at 4 GiB.
"""

from __future__ import annotations

import gzip
import itertools
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edge_kit.errors import ImageError

__all__ = ["CHUNK", "Chunk", "ImageSource", "open_source", "xz_size"]

# Cards erase in blocks of up to 4 MiB.
CHUNK = 4 << 20

_XZ = b"\xfd7zXZ\0"
_XZ_END = b"YZ"
_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"PK\x03\x04": "zip", b"7z\xbc\xaf": "7z",
}  # fmt: skip
_BROKEN = (lzma.LZMAError, EOFError, zlib.error, gzip.BadGzipFile)


@dataclass(frozen=True)
class ImageSource:
    """An image file.

    Attributes:
        path: The file.
        packing: ``raw``, ``xz`` or ``gzip``.
        size: Bytes of the image itself.
    """

    path: Path
    packing: str
    size: int

    def chunks(self, wanted: Sequence[tuple[int, int]] | None = None) -> Iterator[Chunk]:
        """Yield the image in pieces of `CHUNK`, in order; the next is read meanwhile.

        Args:
            wanted: Starts and stops, in order; of a raw file only chunks that touch one are read.
                A packed file has to be unpacked from its start to its end.

        Raises:
            ImageError: The file is damaged, or its size differs from `size`.
        """
        with _reading(self.path), _open(self.path, self.packing) as file:
            if self.packing == "raw":
                starts = _starts(((0, self.size),) if wanted is None else wanted)
                for chunk in _ahead(_read_at(file, starts)):
                    if len(chunk.data) != min(CHUNK, self.size - chunk.offset):
                        break
                    yield chunk
                seen = file.seek(0, os.SEEK_END)
            else:
                seen = 0
                for chunk in _ahead(_read_at(file, itertools.count(0, CHUNK), seek=False)):
                    seen += len(chunk.data)
                    if seen > self.size:
                        break
                    yield chunk
        if seen != self.size:
            raise _damaged(self.path, f"it unpacks to another size than the {self.size:,} bytes")


@dataclass(frozen=True)
class Chunk:
    """A piece of an image.

    Attributes:
        offset: Bytes from its start.
        data: At most `CHUNK` bytes.
    """

    offset: int
    data: bytes


def open_source(path: Path) -> ImageSource:
    """Look at an image file and learn its size.

    Raises:
        ImageError: It is missing, empty, damaged or packed in another way.
    """
    with _reading(path):
        if path.is_dir():
            raise ImageError(f"{path} is a directory, not an image")
        # Pipes and terminals have no size, and reading one may wait for ever.
        if path.exists() and not (path.is_file() or path.is_block_device()):
            raise ImageError(f"{path} is no file", "name an image file")
        with path.open("rb") as file:
            head = file.read(8)
            if head.startswith(_XZ):
                packing, size = "xz", xz_size(file)
            elif head.startswith(_GZIP):
                packing, size = "gzip", _gzip_size(path)
            else:
                packing, size = "raw", file.seek(0, os.SEEK_END)
    for magic, name in _OTHERS.items():
        if head.startswith(magic):
            raise ImageError(f"{path} is packed with {name}", "unpack it, or pack it with xz")
    if size == 0:
        raise ImageError(f"{path} is empty", "fetch or build it again")
    return ImageSource(path, packing, size)


def xz_size(file: IO[bytes]) -> int:
    """Return what an xz file unpacks to, from the indexes of its streams.

    Source: The .xz File Format, sections 2.1.2 (footer) and 4 (index).

    Raises:
        lzma.LZMAError: It is no whole xz file.
    """
    end, total = file.seek(0, os.SEEK_END), 0
    while end > 0:
        footer = _back(file, end, 12)
        if footer == b"\0" * 12 or footer[-4:] == b"\0\0\0\0":
            end -= 4  # padding between streams
            continue
        if footer[-2:] != _XZ_END or zlib.crc32(footer[4:10]) != int.from_bytes(
            footer[:4], "little"
        ):
            raise lzma.LZMAError("its end is missing")
        length = (int.from_bytes(footer[4:8], "little") + 1) * 4
        index = _back(file, end - 12, length)
        if zlib.crc32(index[:-4]) != int.from_bytes(index[-4:], "little"):
            raise lzma.LZMAError("its index is damaged")
        packed, unpacked = _records(index)
        total += unpacked
        end -= 12 + length + packed + 12  # footer, index, blocks, header
    if end < 0:
        raise lzma.LZMAError("its beginning is missing")
    return total


def _records(index: bytes) -> tuple[int, int]:
    """Return the sizes of all blocks, packed (with padding) and unpacked."""
    count, at = _varint(index, 1)
    packed = unpacked = 0
    for _ in range(count):
        one, at = _varint(index, at)
        size, at = _varint(index, at)
        packed += -(-one // 4) * 4
        unpacked += size
    return packed, unpacked


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 56:
            raise lzma.LZMAError("its index is damaged")
        value |= (data[at] & 0x7F) << shift
        if not data[at] & 0x80:
            return value, at + 1
        at, shift = at + 1, shift + 7


def _back(file: IO[bytes], end: int, length: int) -> bytes:
    if length > end:
        raise lzma.LZMAError("its beginning is missing")
    file.seek(end - length)
    return file.read(length)


def _gzip_size(path: Path) -> int:
    size = 0
    with gzip.open(path, "rb") as file:
        while piece := file.read(CHUNK):
            size += len(piece)
    return size


def _open(path: Path, packing: str) -> IO[bytes]:
    if packing == "xz":
        return lzma.open(path, "rb")
    if packing == "gzip":
        return gzip.open(path, "rb")  # type: ignore[return-value]
    return path.open("rb", buffering=0)


def _starts(wanted: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield the offsets of all chunks that touch a range."""
    behind = 0
    for start, stop in wanted:
        at = max(behind, start - start % CHUNK)
        yield from range(at, stop, CHUNK)
        behind = max(behind, -(-stop // CHUNK) * CHUNK)


def _read_at(file: IO[bytes], starts: Iterable[int], *, seek: bool = True) -> Iterator[Chunk]:
    for start in starts:
        if seek:
            file.seek(start)
        yield Chunk(start, _fill(file))


def _fill(file: IO[bytes]) -> bytes:
    """Read a whole chunk; shorter only at the end."""
    pieces, missing = [], CHUNK
    while missing and (piece := file.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _ahead(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield chunks until one is empty; a thread reads one ahead."""
    end = Chunk(0, b"")
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, chunks, end)
        while (chunk := coming.result()).data:
            coming = pool.submit(next, chunks, end)
            yield chunk


class _reading:  # noqa: N801 - used as a statement
    """Turn what fails while reading `path` into a sentence."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, _BROKEN):
            raise _damaged(self._path, str(error)) from None
        if isinstance(error, FileNotFoundError):
            raise ImageError(f"there is no image at {self._path}", "check the path") from None
        if isinstance(error, OSError):
            raise ImageError(f"{self._path} cannot be read: {error.strerror or error}") from None


def _damaged(path: Path, why: str) -> ImageError:
    return ImageError(f"{path} is truncated or damaged: {why}", "fetch or build it again")
