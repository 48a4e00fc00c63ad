"""What a machine says of its block devices, gathered once, as it came.

Several sources, since none sees all: lsblk; blkid, for devices that lsblk knows no contents of; the
kernel, which refuses to open exclusively what is mounted or claimed, be it in another container or
by a driver that leaves no trace in lsblk; and the loop devices' and processes' own lists, for disks
that are used without being claimed. A reading can be written down, so that guards are tested on
those of other machines.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from boards.flash.disks import Disk, parse_disks, walk
from edge_kit.errors import ImageError

__all__ = ["Reading", "disks_of", "parse_blkid", "read_disks", "take_reading"]

_TIMEOUT_S = 30
_BLOCK = Path("/sys/block")
_MOUNTINFO = Path("/proc/self/mountinfo")
LSBLK = ("lsblk", "--json", "--bytes", "--output-all")
_BLKID = ("blkid", "--probe", "--output", "export")
# Optical and floppy drives are no targets, and opening one starts its motor.
_SLOW = re.compile(r"(sr|fd)\d")


@dataclass(frozen=True)
class Reading:
    """Everything that is asked of a machine.

    Attributes:
        lsblk: Its JSON.
        blkid: Its answers by path, for devices without contents in lsblk.
        busy: Kernel names of devices that cannot be opened exclusively.
        loops: Kernel name of each loop device in use, and the file or device behind it.
        writers: Path of a device, and the processes that hold it open for writing.
        cards: Kernel name of each device on the MMC bus, and its type: ``SD`` or ``MMC``.
        mountinfo: ``/proc/self/mountinfo``, since lsblk before 2.37 tells one mount point of many.
    """

    lsblk: str
    blkid: dict[str, str]
    busy: tuple[str, ...]
    loops: dict[str, str]
    writers: dict[str, tuple[str, ...]]
    cards: dict[str, str]
    mountinfo: tuple[str, ...]

    def encode(self) -> dict[str, Any]:
        """Return plain JSON; of lsblk's answer only white space and double keys are lost."""
        return {**asdict(self), "lsblk": json.loads(self.lsblk)}

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Reading:
        """Read what `encode` wrote."""
        return cls(**{**data, "lsblk": json.dumps(data["lsblk"])})


def read_disks() -> tuple[Disk, ...]:
    """Ask this machine.

    Raises:
        ImageError: lsblk is not installed or fails.
    """
    return disks_of(take_reading())


def take_reading() -> Reading:
    """Ask all sources.

    Raises:
        ImageError: lsblk is not installed or fails.
    """
    text = _lsblk()
    devices = {d.path: d for d in walk(parse_disks(text))}
    return Reading(
        lsblk=text,
        blkid={p: _blkid(p) for p, d in devices.items() if _is_blank(d)},
        busy=tuple(d.name for d in devices.values() if _is_busy(d)),
        loops=dict(_facts("loop*/loop/backing_file")),
        writers=_writers(Path("/proc"), set(devices)),
        cards=dict(_facts("mmcblk*/device/type")),
        mountinfo=tuple(_MOUNTINFO.read_text(encoding="utf-8", errors="replace").splitlines()),
    )


def disks_of(reading: Reading) -> tuple[Disk, ...]:
    """Put together what the sources said.

    Raises:
        ImageError: lsblk's answer cannot be read.
    """
    disks = parse_disks(reading.lsblk)
    by_name = {d.name: d for d in walk(disks)}
    points = tuple(_mounts(reading.mountinfo))
    # lsblk puts a loop device beside the disk that it stands on, not upon it.
    upon: dict[str, list[Disk]] = {}
    for name, behind in reading.loops.items():
        if name in by_name:
            upon.setdefault(behind, []).append(by_name[name])

    def add(disk: Disk) -> Disk:
        more = (p for p, number, source in points if source == disk.path or number == disk.number)
        known = replace(
            disk,
            mounts=tuple(dict.fromkeys((*disk.mounts, *more))),
            busy=disk.name in reading.busy,
            card=reading.cards.get(disk.name, ""),
            writers=tuple(reading.writers.get(disk.path, ())),
            children=(*map(add, disk.children), *upon.get(disk.path, ())),
        )
        return _with_contents(known, reading.blkid.get(disk.path, ""))

    return tuple(map(add, disks))


def parse_blkid(text: str) -> dict[str, str]:
    """Read ``blkid --output export``: a name and a value a line, odd bytes behind backslashes."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name: re.sub(r"\\(.)", r"\1", value) for name, equals, value in pairs if equals}


def _lsblk() -> str:
    # The keys and numbers of some versions follow the locale.
    env = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            LSBLK, capture_output=True, text=True, errors="replace", env=env,
            timeout=_TIMEOUT_S, check=True,
        )  # fmt: skip
    except FileNotFoundError:
        raise ImageError(
            "lsblk is not installed, and without it no disk can be told from another",
            "install util-linux; flashing works on Linux only",
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise ImageError(f"lsblk fails: {error}") from None
    return done.stdout


def _is_blank(disk: Disk) -> bool:
    """Return whether to look at the device itself.

    lsblk asks udev, and in a container or on a small system there is none: every disk looks blank.
    """
    return not (disk.filesystem or disk.table or disk.size == 0 or _SLOW.match(disk.name))


def _with_contents(disk: Disk, answer: str) -> Disk:
    if not _is_blank(disk):
        return disk
    found = parse_blkid(answer)
    return replace(
        disk,
        table=found.get("PTTYPE", ""),
        filesystem=found.get("TYPE", ""),
        label=found.get("LABEL", ""),
        uuid=found.get("UUID", ""),
    )


def _blkid(path: str) -> str:
    try:
        done = subprocess.run(
            (*_BLKID, path), capture_output=True, text=True, errors="replace",
            timeout=_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    # 8: several signatures contradict each other; without the right to read there is no answer.
    return "TYPE=several-signatures" if done.returncode == 8 else done.stdout


def _is_busy(disk: Disk) -> bool:
    """Ask the kernel, by opening it for reading only, for a moment."""
    if disk.size == 0 or _SLOW.match(disk.name):
        return False
    try:
        os.close(os.open(disk.path, os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError as error:
        return error.errno == errno.EBUSY
    return False


def _mounts(mountinfo: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    """Yield mount point, device number and source; of btrfs only the source is the device's."""
    for line in mountinfo:
        # Source: proc_pid_mountinfo(5).
        mount, _, system = line.partition(" - ")
        fields = mount.split()
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        yield point, fields[2], system.split()[1]


def _facts(pattern: str) -> Iterator[tuple[str, str]]:
    """Yield names of block devices and what the kernel says of each in one file."""
    for file in sorted(_BLOCK.glob(pattern)):
        try:
            name = file.relative_to(_BLOCK).parts[0]
            yield name, file.read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue  # the device has gone


def _writers(proc: Path, paths: set[str]) -> dict[str, tuple[str, ...]]:
    """Return who has a device open for writing, as far as this user may see."""
    found: dict[str, set[str]] = {}
    for process in proc.glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            for fd in (process / "fd").iterdir():
                path = str(fd.readlink())
                if path in paths and _is_written(process / "fdinfo" / fd.name):
                    who = (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
                    found.setdefault(path, set()).add(f"{who} ({process.name})")
        except OSError:
            continue  # the process ended, or is somebody else's
    return {path: tuple(sorted(who)) for path, who in sorted(found.items())}


def _is_written(fdinfo: Path) -> bool:
    flags = re.search(r"^flags:\s*([0-7]+)", fdinfo.read_text(encoding="ascii"), re.MULTILINE)
    return flags is not None and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY
