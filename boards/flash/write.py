"""Write an image to a card and read it back.

source → chunks → card (partition table last) → sync → read back → compare

The first MiB is cleared at the start and written at the very end, so that a card whose flashing was
interrupted has no partition table. The card's last MiB is cleared too, as far as the image leaves
it free: the second copy of a GPT and the marks of RAID members are there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass

from boards.flash.bmap import BlockMap, Range
from boards.flash.card import Card
from boards.flash.checksum import Progress
from boards.flash.source import Chunk, ImageSource
from edge_kit.errors import ImageError

__all__ = ["Flashed", "flash", "pieces"]

HEAD = 1 << 20
# Dirty pages are written out so often, or progress would run ahead of the card.
_SYNC_EVERY = 32 << 20
# So much of the beginning is compared with the block map before the card is touched.
_PREVIEW = 64 << 20
_GONE = (errno.EIO, errno.ENODEV, errno.ENXIO, errno.ENOMEDIUM, errno.EREMOTEIO, errno.ESHUTDOWN)


@dataclass(frozen=True)
class Flashed:
    """What a finished flash did.

    Attributes:
        image_size: Bytes of the image.
        written: Bytes of it that were written; the rest are holes of the block map.
        verified: Bytes that were read back and found equal.
    """

    image_size: int
    written: int
    verified: int


def flash(source: ImageSource, block_map: BlockMap, card: Card, progress: Progress) -> Flashed:
    """Write and verify.

    Args:
        source: The image.
        block_map: What of it to write.
        card: Where to.
        progress: Told of a stage (``writing``, ``verifying``), bytes done and bytes in all.

    Raises:
        ImageError: Image and map differ, the card fails, is pulled out, or does not keep what was
            written. The card is not usable then.
    """
    check_map(source, block_map, card)
    check_start(source, block_map)
    done = 0

    def step(stage: str, more: int) -> None:
        nonlocal done
        done += more
        progress(stage, done, block_map.mapped)

    try:
        digests = _write(source, block_map, card, lambda n: step("writing", n))
    except OSError as error:
        raise _failed(error, "writing", done, block_map.mapped) from None
    except ImageError as error:
        raise ImageError(f"{error.what}; the card is not usable as it is", error.hint) from None
    written, done = done, 0
    try:
        card.drop_caches()
        for offset, length, digest in digests:
            _compare(card, offset, length, digest)
            step("verifying", length)
    except OSError as error:
        raise _failed(error, "reading back", done, block_map.mapped) from None
    return Flashed(source.size, written, done)


def check_map(source: ImageSource, block_map: BlockMap, card: Card) -> None:
    """Refuse an image of another size than the map's, or one that does not fit.

    Raises:
        ImageError: With the two sizes.
    """
    if source.size != block_map.image_size:
        raise ImageError(
            f"{source.path} has {source.size:,} bytes, and its block map is for an image of "
            f"{block_map.image_size:,}",
            "fetch both again, or write the whole image with --no-bmap",
        )
    if source.size > card.size:
        raise ImageError(
            f"the image takes {source.size:,} bytes and the card has {card.size:,}",
            "take a larger card",
        )


def check_start(source: ImageSource, block_map: BlockMap) -> None:
    """Compare the image's first ranges with the map's: maps of other images differ there.

    Raises:
        ImageError: They do; nothing was written yet.
    """
    first: list[Range] = []
    for found in block_map.ranges:
        if not found.sha256 or found.stop > _PREVIEW:
            break
        first.append(found)
    if not first:
        return
    # Packed images are read no further than that.
    with contextlib.closing(pieces(source, tuple(first))) as preview:
        for piece in preview:
            if piece.offset + len(piece.data) >= first[-1].stop:
                break


def pieces(source: ImageSource, ranges: tuple[Range, ...]) -> Generator[Chunk, None, None]:
    """Yield what is in `ranges`, at most a chunk each, and check each range's SHA-256.

    Raises:
        ImageError: The image is damaged, or is not the map's.
    """
    waiting = iter(ranges)
    current = next(waiting, None)
    digest = hashlib.sha256()
    for chunk in source.chunks([(r.start, r.stop) for r in ranges]):
        at, end = chunk.offset, chunk.offset + len(chunk.data)
        while current is not None and current.start < end:
            start, stop = max(at, current.start), min(end, current.stop)
            data = chunk.data[start - at : stop - at]
            digest.update(data)
            if stop == current.stop:
                _check_range(source, current, digest.hexdigest())
            yield Chunk(start, data)
            if stop < current.stop:
                break
            current, digest = next(waiting, None), hashlib.sha256()


def _check_range(source: ImageSource, found: Range, digest: str) -> None:
    if found.sha256 and digest != found.sha256:
        raise ImageError(
            f"{source.path} differs from its block map at byte {found.start:,}: the map is for "
            "another image, or one of the two is damaged",
            "fetch both again, or write the whole image with --no-bmap",
        )


def _write(
    source: ImageSource, block_map: BlockMap, card: Card, step: Callable[[int], None]
) -> list[tuple[int, int, bytes]]:
    """Write all pieces; return offset, length and SHA-256 of each."""
    card.write(0, bytes(min(HEAD, card.size)))
    tail = max(source.size, card.size - HEAD)
    if tail < card.size:
        card.write(tail, bytes(card.size - tail))
    card.sync()
    held: list[Chunk] = []
    digests: list[tuple[int, int, bytes]] = []
    dirty = 0
    for piece in pieces(source, block_map.ranges):
        digests.append((piece.offset, len(piece.data), hashlib.sha256(piece.data).digest()))
        head = max(0, min(len(piece.data), HEAD - piece.offset))
        if head:
            held.append(Chunk(piece.offset, piece.data[:head]))
        if rest := piece.data[head:]:
            card.write(piece.offset + head, rest)
            dirty += len(rest)
        if dirty >= _SYNC_EVERY:
            card.sync()
            dirty = 0
        step(len(piece.data))
    card.sync()
    for piece in held:
        card.write(piece.offset, piece.data)
    card.sync()
    return digests


def _compare(card: Card, offset: int, length: int, digest: bytes) -> None:
    if hashlib.sha256(card.read(offset, length)).digest() != digest:
        raise ImageError(
            f"the card gives back other bytes than were written, between {offset:,} and "
            f"{offset + length:,}: it is worn out, or smaller than it claims",
            "take another card",
        )


def _failed(error: OSError, doing: str, done: int, whole: int) -> ImageError:
    where = f"after {done >> 20:,} of {whole >> 20:,} MiB"
    if error.errno in _GONE:
        what = f"the card was pulled out or fails: {doing} it ended {where}"
    elif error.errno == errno.ENOSPC:
        what = f"the card ended {where} ({doing}): it is smaller than it claims, or was pulled out"
    else:
        what = f"{doing} the card failed {where}: {error.strerror or error}"
    return ImageError(
        f"{what}. It is not usable as it is",
        "put it in firmly and flash it again; take another card if that fails too",
    )
