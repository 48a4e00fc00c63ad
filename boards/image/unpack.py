"""Copy an image as a raw file, leaving holes where it holds zeros."""

from __future__ import annotations

import subprocess
from pathlib import Path

from boards.system.tool import call, need
from edge_kit.errors import ImageError

__all__ = ["copy_raw"]


def copy_raw(image: Path, raw: Path) -> None:
    """Copy or unpack an image, ``.img`` or ``.img.xz``; blocks of zeros become holes.

    Raises:
        ImageError: It is damaged, or the disk is full.
    """
    if image.suffix != ".xz":
        call(["cp", "--sparse=always", "--reflink=auto", image, raw])
        return
    with raw.open("wb") as out:
        done = subprocess.run(
            [need("xz"), "--decompress", "--stdout", str(image)],
            stdout=out, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip()
        raise ImageError(f"{image} cannot be unpacked: {last}", "fetch or build it again")
