"""The card that an image is written to: a small Protocol, and a block device."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from typing import Protocol

from boards.flash.disks import Disk
from edge_kit.errors import ImageError

__all__ = ["SUDO", "BlockCard", "Card"]

# sudo has a PATH of its own, without virtual environments.
SUDO = 'run the same command with sudo (in a virtual environment: sudo "$(command -v edge-kit)" …)'

# <linux/fs.h>
_BLKRRPART = 0x125F
_BLKFLSBUF = 0x1261
_BLKGETSIZE64 = 0x80081272


class Card(Protocol):
    """Bytes that can be written, synced and read back; offsets are bytes from the start."""

    @property
    def size(self) -> int:
        """Return the capacity in bytes."""

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            OSError: The card fails, is full or has gone.
        """

    def sync(self) -> None:
        """Wait until all that was written is on the card.

        Raises:
            OSError: As `write`; the kernel tells of lost writes here.
        """

    def drop_caches(self) -> None:
        """Make later reads come from the card and not from memory."""

    def read(self, offset: int, length: int) -> bytes:
        """Read; shorter at the card's end.

        Raises:
            OSError: The card fails or has gone.
        """


class BlockCard:
    """A block device, opened exclusively: the kernel refuses when anything else uses it.

    A context manager. Writes go through the page cache, and `sync` waits for them.

    Args:
        disk: What lsblk said of it.

    Raises:
        ImageError: It cannot be opened, is in use, or is another device than it was.
    """

    def __init__(self, disk: Disk) -> None:
        self._fd = _open(disk.path)
        try:
            self._size = _check(self._fd, disk)
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> BlockCard:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    @property
    def size(self) -> int:
        """Return the capacity in bytes."""
        return self._size

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`."""
        view = memoryview(data)
        while view:
            try:
                done = os.pwrite(self._fd, view, offset)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    self._check_present()
                raise
            view, offset = view[done:], offset + done

    def sync(self) -> None:
        """Wait until all that was written is on the card."""
        os.fsync(self._fd)

    def drop_caches(self) -> None:
        """Drop the device's pages from the cache, so that reads come from the card."""
        self.sync()
        # Both drop pages that are on the card already. The first works for every user, the second
        # for root only.
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with contextlib.suppress(OSError):  # a card that has gone fails when read
            fcntl.ioctl(self._fd, _BLKFLSBUF)

    def read(self, offset: int, length: int) -> bytes:
        """Read; shorter at the card's end."""
        data = os.pread(self._fd, length, offset)
        if len(data) < min(length, self._size - offset):
            self._check_present()
        return data

    def _check_present(self) -> None:
        """Raise ENODEV when the disk was unplugged.

        It has no blocks then: writing finds no room, and reading finds the end.
        """
        if _size(self._fd) < self._size:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def reread_partitions(self) -> None:
        """Tell the kernel of the new partitions, where it wants to know."""
        with contextlib.suppress(OSError):
            fcntl.ioctl(self._fd, _BLKRRPART)

    def close(self) -> None:
        """Close; what was not synced may be lost."""
        os.close(self._fd)


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
    except PermissionError:
        raise ImageError(f"{path} may not be written by this user", SUDO) from None
    except OSError as error:
        reasons = {
            errno.EBUSY: "is in use: something mounted it or stands on it",
            errno.EROFS: "is read-only; look for the card's lock switch",
            errno.ENOMEDIUM: "has no medium in it",
        }
        why = reasons.get(error.errno or 0, f"cannot be opened: {error.strerror or error}")
        raise ImageError(f"{path} {why}") from None


def _check(fd: int, disk: Disk) -> int:
    """Return the size of the open device, after comparing it with what was judged."""
    state = os.fstat(fd)
    if not stat.S_ISBLK(state.st_mode):
        raise ImageError(f"{disk.path} is not a block device")
    number = f"{os.major(state.st_rdev)}:{os.minor(state.st_rdev)}"
    size = _size(fd)
    if (number, size) != (disk.number, disk.size):
        raise ImageError(
            f"{disk.path} is another device than a moment ago; nothing was written",
            "list the candidates again: edge-kit image flash",
        )
    return size


def _size(fd: int) -> int:
    return int(struct.unpack("Q", fcntl.ioctl(fd, _BLKGETSIZE64, bytes(8)))[0])
