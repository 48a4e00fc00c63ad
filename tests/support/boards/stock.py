"""A small image with the layout of Raspberry Pi OS, made here: FAT32 boot and ext4 root."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from boards.image.partitions import assemble

__all__ = ["BOOKWORM", "CMDLINE", "DISK_ID", "TRIXIE", "make_stock", "run"]

# cmdline.txt of the images as downloaded (pi-gen, stage1/00-boot-files, and its export-image). The
# first start of either writes another disk id and removes its own last word.
EPOCH = 1_700_000_000
_TOOLS = ("mkfs.vfat", "mcopy", "mke2fs", "debugfs", "sfdisk")
tools = pytest.mark.skipif(
    any(shutil.which(t, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None for t in _TOOLS),
    reason=f"needs {', '.join(_TOOLS)}",
)
DISK_ID = "4d8fd085"
_LINE = f"console=serial0,115200 console=tty1 root=PARTUUID={DISK_ID}-02 rootfstype=ext4"
BOOKWORM = f"{_LINE} fsck.repair=yes rootwait quiet init=/usr/lib/raspberrypi-sys-mods/firstboot"
TRIXIE = f"{_LINE} fsck.repair=yes rootwait resize"
CMDLINE = BOOKWORM


def make_stock(
    folder: Path,
    codename: str = "bookworm",
    arch: str = "aarch64",
    line: str = CMDLINE,
    mount: str = "/boot/firmware",
) -> Path:
    """Return ``stock.img``, with a boot partition of 48 MiB."""
    root = folder / "root"
    (root / "usr/lib" / f"{arch}-linux-gnu").mkdir(parents=True)
    (root / "usr/lib" / f"{arch}-linux-gnu/libc.so.6").write_text("")
    (root / "usr/lib/os-release").write_text(f"ID=debian\nVERSION_CODENAME={codename}\n")
    (root / "etc").mkdir()
    (root / "etc/fstab").write_text(f"PARTUUID={DISK_ID}-01 {mount} vfat defaults 0 2\n")
    fat, ext4 = folder / "fat", folder / "ext4"
    run("mkfs.vfat", "-F", "32", "-s", "1", "-n", "bootfs", "-C", fat, str(48 * 1024))
    for name, text in (("cmdline.txt", line + "\n"), ("config.txt", "camera_auto_detect=1\n")):
        (folder / name).write_text(text)
        run("mcopy", "-i", fat, folder / name, "::/")
    run("mke2fs", "-q", "-t", "ext4", "-d", root, ext4, "16M")
    image = folder / "stock.img"
    assemble([fat, ext4], ["c", "83"], image)
    return image


def run(*words: object) -> str:
    """Run a program of /usr/sbin too."""
    done = subprocess.run(
        [str(w) for w in words], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TZ": "UTC"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
