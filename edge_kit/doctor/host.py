"""The board itself: what it is, its clock, its disk, its cameras."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from edge_kit.doctor.check import Check
from edge_kit.host.board import Board, clock_synchronised
from edge_kit.host.clock import CLOCK_FLOOR
from edge_kit.sources.picamera import connected_cameras, find_picamera2, why_no_picamera2
from edge_kit.sources.v4l2 import list_devices

__all__ = ["check_board", "check_cameras", "check_clock", "check_disk"]

_MIB = 1 << 20
# Below the first a spool of low-confidence frames soon fills; below the second SQLite itself fails.
_DISK_LITTLE = 256 * _MIB
_DISK_NONE = 16 * _MIB


def check_board(board: Board) -> Check:
    """Say what this is."""
    facts = [
        board.model or "unknown model",
        board.arch,
        f"{board.cores} core{'s' if board.cores != 1 else ''}",
        f"{board.memory_free // _MIB} of {board.memory // _MIB} MiB free",
        board.system,
        f"Python {board.python}",
    ]
    if board.temperature:
        facts.append(f"{board.temperature:.0f} °C")
    return Check("board", True, ", ".join(f for f in facts if f))


def check_cameras(dev: Path = Path("/dev")) -> Iterator[Check]:
    """List the cameras. A board without one is fine: it may play files."""
    driver = find_picamera2()
    cameras = connected_cameras(driver)
    if cameras:
        yield Check("camera picamera2", True, ", ".join(cameras))
    devices = list_devices(dev)
    for device in devices:
        hint = "add this user to the group 'video' and log in again" if device.problem else ""
        yield Check(
            f"camera {device.path}",
            None if device.problem else True,
            device.problem or device.card,
            hint,
        )
    if not cameras and not devices:
        why = "libcamera sees no camera" if driver is not None else why_no_picamera2()
        yield Check("camera", None, f"no V4L2 camera; {why}")


def check_clock(
    synchronised: Callable[[], bool | None] = clock_synchronised,
    now: Callable[[], float] = time.time,
) -> Check:
    """Say whether a time server set the clock.

    Args:
        synchronised: Asks the kernel; None when it does not tell.
        now: Unix time, seconds.
    """
    hint = "start a time service, for example: sudo timedatectl set-ntp true"
    if now() < CLOCK_FLOOR:
        stamp = time.strftime("%Y-%m-%d", time.gmtime(now()))
        return Check("clock", False, f"it says {stamp}; certificates will be refused", hint)
    answer = synchronised()
    if answer is None:
        return Check("clock", None, "whether it is synchronised cannot be told here")
    if not answer:
        return Check("clock", None, "not synchronised; capture times may be off", hint)
    return Check("clock", True, "synchronised")


def check_disk(spool: Path) -> Check:
    """Look at the disk that the spool is, or will be, on."""
    place = spool.absolute()
    try:
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Check("disk", False, f"{place} cannot be looked at ({error.strerror})")
    detail = f"{free // _MIB} MiB free under {place}"
    if not os.access(place, os.W_OK):
        return Check("disk", False, f"this user may not write to {place}", "name another --spool")
    if free < _DISK_NONE:
        return Check("disk", False, detail, "free some space, or name another --spool")
    if free < _DISK_LITTLE:
        return Check("disk", None, detail, "samples may have to be dropped when offline")
    return Check("disk", True, detail)
