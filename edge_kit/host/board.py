"""What this board is, read from the files in which Linux says so."""

from __future__ import annotations

import ctypes
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "Board",
    "available_cores",
    "clock_synchronised",
    "default_threads",
    "read_board",
    "read_numbers",
    "read_sizes",
    "read_text",
]

_MOST_THREADS = 4
# adjtimex(2): what it returns for a clock that no time server has set.
_TIME_ERROR = 5


def available_cores() -> int:
    """Return the cores that this process may run on: the affinity mask, not the machine."""
    return len(os.sched_getaffinity(0))


def default_threads() -> int:
    """Return the threads that an engine gets by default; more than 4 rarely help at batch 1."""
    return min(available_cores(), _MOST_THREADS)


@dataclass(frozen=True)
class Board:
    """Facts about this machine; 0 or an empty text where it is unknown.

    Attributes:
        model: Such as ``Raspberry Pi 4 Model B Rev 1.4``.
        arch: As the kernel names it, such as ``aarch64``.
        cores: Usable by this process.
        memory: Bytes in all.
        memory_free: Bytes that new programs can have.
        temperature: Hottest zone, degrees Celsius.
        system: Name and version of the operating system.
        kernel: Release.
        python: Version.
    """

    model: str
    arch: str
    cores: int
    memory: int
    memory_free: int
    temperature: float
    system: str
    kernel: str
    python: str

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def read_board(root: Path = Path("/")) -> Board:
    """Read the facts.

    Args:
        root: Where ``proc``, ``sys`` and ``etc`` lie; another one in tests.
    """
    memory = read_sizes(root / "proc/meminfo")
    zones = read_numbers(root, "sys/class/thermal/thermal_zone*/temp")
    return Board(
        model=_model(root),
        arch=platform.machine(),
        cores=available_cores(),
        memory=memory.get("MemTotal", 0),
        memory_free=memory.get("MemAvailable", 0),
        # Millidegrees: Documentation/ABI/testing/sysfs-class-thermal
        temperature=max(zones, default=0) / 1000,
        system=_system(root),
        kernel=platform.release(),
        python=platform.python_version(),
    )


def read_text(file: Path) -> str:
    """Return what the kernel says in a file; empty where there is no such file."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip("\0\n ")
    except OSError:
        return ""


def read_numbers(root: Path, pattern: str) -> list[int]:
    """Return the whole numbers in all files below `root` that match a glob pattern."""
    texts = (read_text(file) for file in root.glob(pattern))
    return [int(t) for t in texts if t.lstrip("-").isdigit()]


def read_sizes(file: Path) -> dict[str, int]:
    """Return lines such as ``VmRSS: 12 kB`` of a file of proc(5), in bytes."""
    rows = (line.replace(":", "").split() for line in read_text(file).splitlines())
    return {row[0]: int(row[1]) * 1024 for row in rows if row[2:] == ["kB"]}


def _model(root: Path) -> str:
    # Boards describe themselves by a device tree, PCs by DMI.
    for name in ("proc/device-tree/model", "sys/firmware/devicetree/base/model"):
        if model := read_text(root / name):
            return model
    dmi = root / "sys/class/dmi/id"
    return f"{read_text(dmi / 'sys_vendor')} {read_text(dmi / 'product_name')}".strip()


def _system(root: Path) -> str:
    for line in read_text(root / "etc/os-release").splitlines():
        key, _equals, value = line.partition("=")
        if key == "PRETTY_NAME":
            return value.strip("\"'")
    return platform.system()


def clock_synchronised() -> bool | None:
    """Return whether a time server set the clock; None where the kernel does not tell."""
    try:
        call = ctypes.CDLL(None).adjtimex
    except (OSError, AttributeError):
        return None
    # An all-zero struct timex (208 bytes at most) asks and changes nothing, which needs no right.
    state = int(call(ctypes.create_string_buffer(512)))
    return None if state < 0 else state != _TIME_ERROR
