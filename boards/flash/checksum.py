"""The ``.sha256`` beside an image: whether the file is what was built, before a card is touched."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

from edge_kit.errors import ImageError

__all__ = ["Progress", "check_checksum", "find_checksum", "read_checksum"]

# Called with a stage, bytes done and bytes in all.
Progress = Callable[[str, int, int], None]

_CHUNK = 4 << 20
# As sha256sum writes: digest, a space, a space or an asterisk, name. Or the digest alone.
_LINE = re.compile(r"([0-9a-fA-F]{64})(?: [ *](.+))?")


def find_checksum(image: Path) -> Path | None:
    """Return ``edge.img.xz.sha256`` for ``edge.img.xz``; None when there is none."""
    beside = image.with_name(f"{image.name}.sha256")
    return beside if beside.is_file() else None


def read_checksum(file: Path, name: str) -> str:
    """Return the digest that a checksum file gives for an image.

    A file of one line is about the image beside it, also when that was renamed.

    Args:
        file: The checksum file.
        name: The image's name, which tells its line from others.

    Raises:
        ImageError: It cannot be read, or says nothing of this image.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ImageError(f"{file} cannot be read: {error.strerror or error}", _hint(file)) from None
    lines = [line for line in text.splitlines() if line.strip()]
    found = [m for line in lines if (m := _LINE.fullmatch(line.strip()))]
    if len(lines) == len(found) == 1:
        return found[0][1].lower()
    digests = {m[1].lower() for m in found if m[2] and Path(m[2]).name == name}
    if len(digests) != 1:
        raise ImageError(f"{file} has no SHA-256 of {name}", _hint(file))
    return digests.pop()


def check_checksum(image: Path, file: Path, progress: Progress) -> None:
    """Compare an image with its checksum file.

    Args:
        image: The file on the disk, packed or not.
        file: The checksum file.
        progress: Told of the stage ``checking``, bytes done and bytes in all.

    Raises:
        ImageError: They differ, or one cannot be read.
    """
    wanted = read_checksum(file, image.name)
    digest, done = hashlib.sha256(), 0
    try:
        whole = image.stat().st_size
        with image.open("rb") as stream:
            while piece := stream.read(_CHUNK):
                digest.update(piece)
                done += len(piece)
                progress("checking", done, max(done, whole))
    except OSError as error:
        raise ImageError(f"{image} cannot be read: {error.strerror or error}") from None
    if digest.hexdigest() != wanted:
        raise ImageError(
            f"{image} is not the file that {file.name} was made of: it was damaged on its way, or "
            "the two belong to different images; nothing was written",
            "fetch both again",
        )


def _hint(file: Path) -> str:
    return f"fetch it again, or move {file.name} away if you trust the image without it"
