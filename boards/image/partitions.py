"""File systems and the partition table, made as files: no loop devices, no mounts, no clock."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from boards.system.tool import call
from edge_kit.errors import ImageError

__all__ = ["BOOT_MIB", "Partition", "assemble", "make_ext4", "make_fat", "partitions"]

MIB = 1 << 20
SECTOR = 512
# The first partition starts where erase blocks of cards do.
START = 4 * MIB
BOOT_MIB = 256
DISK_ID = "0xed6e0001"
_FAT_ID = "ed6e0001"
_UUID = "ed6e0000-0000-4000-8000-00000000000{n}"
_FAT, _LINUX = "c", "83"
# Files smaller than a block, indexes and the journal take this much beside the files' own sizes.
_SLACK = 1.12
_JOURNAL_MIB = 80


@dataclass(frozen=True)
class Partition:
    """One partition of an image.

    Attributes:
        number: From 1.
        start: Offset, bytes.
        size: Bytes.
        kind: MBR's type, hexadecimal.
    """

    number: int
    start: int
    size: int
    kind: str


def make_fat(tree: Path, out: Path, epoch: int) -> None:
    """Make the boot partition of the files in a flat directory.

    Raises:
        ImageError: They do not fit, or a tool is missing.
    """
    out.unlink(missing_ok=True)
    label = ["-F", "32", "-n", "EDGEBOOT", "-i", _FAT_ID, "--invariant"]
    call(["mkfs.vfat", *label, "-C", out, str(BOOT_MIB * 1024)])
    files = sorted(tree.iterdir())
    for path in files:
        os.utime(path, (epoch, epoch))
    env = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "TZ": "UTC", "MTOOLS_SKIP_CHECK": "1"}
    call(["mcopy", "-m", "-i", out, *files, "::/"], env=env)


def make_ext4(tree: Path, out: Path, label: str, number: int, epoch: int, spare_mib: int) -> None:
    """Make an ext4 file system of a directory, the same bytes for the same files.

    Args:
        tree: The files; owners and modes are taken over.
        out: The file to make.
        label: Such as ``EDGEROOT``.
        number: Of the partition; its UUID ends so.
        epoch: Unix time that everything in it bears which has no older one.
        spare_mib: Free space.

    Raises:
        ImageError: The disk is full, or a tool is missing.
    """
    out.unlink(missing_ok=True)
    used = sum(_blocks(p) for p in (tree, *tree.rglob("*")))
    size = int(used * _SLACK / MIB) + _JOURNAL_MIB + spare_mib
    uuid = _UUID.format(n=number)
    options = ["-b", "4096", "-i", "16384", "-I", "256", "-m", "1", "-J", "size=16"]
    extended = f"hash_seed={uuid[:-1]}{number + 5},root_owner=0:0,lazy_itable_init=0"
    # Resized to a card's size at the first boot, up to 128 GiB without moving a thing.
    if label == "EDGEDATA":
        extended += f",resize={128 << 18}"
    env = os.environ | {"E2FSPROGS_FAKE_TIME": str(epoch), "TZ": "UTC"}
    call(
        ["mke2fs", "-q", "-t", "ext4", "-L", label, "-U", uuid, "-E", extended, *options,
         "-d", tree, out, f"{size}M"],
        env=env,
    )  # fmt: skip
    _set_times(tree, out, epoch, env)


def _blocks(path: Path) -> int:
    size = path.lstat().st_size
    return -(-size // 4096) * 4096 + 256


def _set_times(tree: Path, image: Path, epoch: int, env: dict[str, str]) -> None:
    """Overwrite the times that mke2fs takes from the build: no program can set a file's ctime."""
    commands = []
    for path in sorted((tree, *tree.rglob("*"))):
        name = "/" + str(path.relative_to(tree)) if path != tree else "/"
        if '"' in name or "\n" in name:
            raise ImageError(f"{name!r} cannot be named to debugfs")
        for field, value in (("ctime", epoch), ("atime", epoch), ("crtime", epoch)):
            commands.append(f'set_inode_field "{name}" {field} @{value}')
            commands.append(f'set_inode_field "{name}" {field}_extra 0')
        commands.append(f'set_inode_field "{name}" mtime_extra 0')
    call(["debugfs", "-w", "-f", "-", image], stdin="\n".join(commands) + "\n", env=env)


def assemble(parts: list[Path], kinds: list[str], out: Path) -> list[Partition]:
    """Join file systems to an image with a partition table; holes stay holes.

    Raises:
        ImageError: The disk is full, or sfdisk is missing.
    """
    table, found, at = [f"label: dos\nlabel-id: {DISK_ID}"], [], START
    for number, (part, kind) in enumerate(zip(parts, kinds, strict=True), 1):
        size = part.stat().st_size
        boots = ", bootable" if number == 1 else ""
        table.append(f"start={at // SECTOR}, size={size // SECTOR}, type={kind}{boots}")
        found.append(Partition(number, at, size, kind))
        at += size
    with out.open("wb") as file:
        file.truncate(at)
    call(["sfdisk", "--quiet", out], stdin="\n".join(table) + "\n")
    for part, place in zip(parts, found, strict=True):
        # Only what is not zero, so that holes stay holes.
        sparse = ["conv=notrunc,sparse", "oflag=seek_bytes", "status=none", "bs=64K"]
        call(["dd", f"if={part}", f"of={out}", f"seek={place.start}", *sparse])
    return found


def partitions(image: Path) -> list[Partition]:
    """Read an image's partition table.

    Raises:
        ImageError: It has none, or sfdisk is missing.
    """
    found = []
    for line in call(["sfdisk", "--dump", image]).splitlines():
        match = re.search(r"(\d+) : start= *(\d+), size= *(\d+), type=(\w+)", line)
        if match:
            number, start, size = (int(match[n]) for n in (1, 2, 3))
            found.append(Partition(number, start * SECTOR, size * SECTOR, match[4]))
    if not found:
        raise ImageError(f"{image} has no partitions")
    return found
