"""Unpack an image, leaving holes where it holds zeros."""

from __future__ import annotations

import subprocess
from pathlib import Path

from boards.system.tool import need
from edge_kit.errors import ImageError

__all__ = ["unpack_xz"]


def unpack_xz(image: Path, raw: Path) -> None:
    """Unpack an image; blocks of zeros become holes.

    Raises:
        ImageError: It is damaged.
    """
    with raw.open("wb") as out:
        done = subprocess.run(
            [need("xz"), "--decompress", "--stdout", str(image)],
            stdout=out, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip()
        raise ImageError(f"{image} cannot be unpacked: {last}", "fetch or build it again")
