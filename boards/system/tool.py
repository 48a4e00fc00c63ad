"""Run other programs: say what runs, turn failures into sentences, find what `PATH` hides."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edge_kit.errors import ImageError

__all__ = ["Reporter", "call", "need", "require"]

# Called with a line for the person who waits.
Reporter = Callable[[str], None]

# Debian keeps what formats and partitions where a user's PATH does not reach.
_PLACES = ("/usr/sbin", "/sbin")

# Which Debian package brings a tool, for the sentence.
_PACKAGES = {
    "apt-get": "apt",
    "busybox": "busybox",
    "cpio": "cpio",
    "debugfs": "e2fsprogs",
    "depmod": "kmod",
    "dpkg-deb": "dpkg",
    "e2fsck": "e2fsprogs",
    "fsck.vfat": "dosfstools",
    "mcopy": "mtools",
    "mdel": "mtools",
    "mdir": "mtools",
    "mke2fs": "e2fsprogs",
    "mkfs.vfat": "dosfstools",
    "modprobe": "kmod",
    "newgidmap": "uidmap",
    "newuidmap": "uidmap",
    "qemu-aarch64-static": "qemu-user-static",
    "qemu-system-aarch64": "qemu-system-arm",
    "setpriv": "util-linux",
    "sfdisk": "fdisk",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "systemctl": "systemd",
    "systemd-sysusers": "systemd",
    "unshare": "util-linux",
    "xz": "xz-utils",
}


def need(name: str) -> str:
    """Return the path of a program.

    Raises:
        ImageError: It is not installed; the message names Debian's package.
    """
    search = os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])
    path = shutil.which(name, path=search)
    if path is None:
        package = _PACKAGES.get(name, name)
        raise ImageError(f"{name} is not installed", f"on Debian: apt-get install {package}")
    return path


def require(names: Sequence[str]) -> None:
    """Check that all programs are there, before minutes of work are lost for want of the last.

    Raises:
        ImageError: Some are missing; the message names all their packages at once.
    """
    missing = []
    for name in names:
        try:
            need(name)
        except ImageError:
            missing.append(name)
    if missing:
        packages = sorted({_PACKAGES.get(name, name) for name in missing})
        raise ImageError(
            f"not installed: {', '.join(missing)}",
            f"on Debian: apt-get install {' '.join(packages)}",
        )


def call(
    command: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a program to its end and return what it wrote.

    Raises:
        ImageError: It is not installed or failed; the message ends with its last words.
    """
    words = [need(str(command[0])), *map(str, command[1:])]
    done = subprocess.run(
        words,
        input=stdin,
        env=None if env is None else dict(env),
        cwd=cwd,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-4:])
        raise ImageError(f"{command[0]} failed with {done.returncode}: {last}")
    return done.stdout
