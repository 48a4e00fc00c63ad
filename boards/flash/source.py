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
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from boards.system.tool import call, need
from edge_kit.errors import ImageError

__all__ = ["CHUNK", "Chunk", "ImageSource", "open_source"]

# Cards erase in blocks of up to 4 MiB.
CHUNK = 4 << 20

_XZ = b"\xfd7zXZ\0"
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
        """Yield the image in pieces of `CHUNK`, in order; the next is read in the background.

        Args:
            wanted: Starts and stops, in order; of a raw file only chunks that touch one are read.
                A packed file has to be unpacked from its start to its end.

        Raises:
            ImageError: The file is damaged, or its size differs from `size`.
        """
        wanted = ((0, self.size),) if wanted is None else wanted
        raw, seen = self.packing == "raw", 0
        with _reading(self.path), _open(self.path, self.packing) as file:
            # A packed file is read to its end, which shows whether it is whole.
            starts = _starts(wanted) if raw else itertools.count(0, CHUNK)
            for chunk in _ahead(_read_at(file, starts, seek=raw)):
                seen = chunk.offset + len(chunk.data)
                if (len(chunk.data) < CHUNK and seen != self.size) or seen > self.size:
                    break
                yield chunk
            seen = file.seek(0, os.SEEK_END) if raw else seen
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
        # Pipes and terminals have no size, and reading one may wait for ever.
        if path.exists() and not (path.is_file() or path.is_block_device()):
            raise ImageError(f"{path} is not a file", "name an image file")
        with path.open("rb") as file:
            head = file.read(8)
            if head.startswith(_XZ):
                packing, size = "xz", _xz_size(path)
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


def _xz_size(path: Path) -> int:
    """Return what an xz file unpacks to, from the indexes of its streams."""
    xz = need("xz")
    try:
        rows = call([xz, "--robot", "--list", path]).splitlines()
    except ImageError as error:
        raise _damaged(path, error.what) from None
    # Source: xz(1), "ROBOT MODE": the last row has the sums; its fifth column is that size.
    return int(rows[-1].split("\t")[4])


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


def _read_at(file: IO[bytes], starts: Iterable[int], *, seek: bool) -> Iterator[Chunk]:
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


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn what fails while reading `path` into a sentence."""
    try:
        yield
    except _BROKEN as error:
        raise _damaged(path, str(error)) from None
    except FileNotFoundError:
        raise ImageError(f"there is no image at {path}", "check the path") from None
    except OSError as error:
        raise ImageError(f"{path} cannot be read: {error.strerror or error}") from None


def _damaged(path: Path, why: str) -> ImageError:
    return ImageError(f"{path} is truncated or damaged: {why}", "fetch or build it again")
