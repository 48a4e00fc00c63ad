"""What a board is going through while it is measured: heat, clock, throttling, other load."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_kit.bench.conditions.throttling import Throttling
from edge_kit.host.board import read_numbers, read_text

__all__ = ["BoardState", "busy_seconds", "read_governor", "read_state"]

# Below soc/soc:firmware on most; the names of both folders vary with the board.
_FIRMWARE = "sys/devices/platform/soc*/*firmware/get_throttled"
_VCGENCMD_S = 5.0


@dataclass(frozen=True)
class BoardState:
    """One look at the board; None where it does not tell.

    Attributes:
        temperature: Hottest zone, degrees Celsius.
        clock_mhz: Mean of the cores' clocks.
        throttling: A Raspberry Pi's bits.
        cooling: The kernel holds the cores' clock down because of heat.
        throttle_count: How often x86 cores throttled since boot, added up.
    """

    temperature: float | None = None
    clock_mhz: float | None = None
    throttling: Throttling | None = None
    cooling: bool | None = None
    throttle_count: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        bits = self.throttling
        return {
            "temperature_c": self.temperature,
            "clock_mhz": self.clock_mhz,
            "throttled": None if bits is None else f"{bits.bits:#x}",
            "throttled_now": [] if bits is None else list(bits.now),
            "throttled_since_boot": [] if bits is None else list(bits.since_boot),
            "cooling": self.cooling,
            "throttle_count": self.throttle_count,
        }


def read_state(root: Path = Path("/"), vcgencmd: Callable[[], str] | None = None) -> BoardState:
    """Look once.

    Args:
        root: Where ``proc`` and ``sys`` lie; another one in tests.
        vcgencmd: Asks the firmware where the kernel has no file for it; by default the program of
            that name, if there is one.
    """
    zones = read_numbers(root, "sys/class/thermal/thermal_zone*/temp")
    clocks = read_numbers(root, "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_cur_freq")
    counts = read_numbers(root, "sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")
    told = "".join(read_text(file) for file in list(root.glob(_FIRMWARE))[:1])
    text = told or (vcgencmd or _ask_firmware)()
    return BoardState(
        # Millidegrees and kHz: Documentation/ABI/testing/sysfs-class-thermal and cpu-freq
        temperature=round(max(zones) / 1000, 1) if zones else None,
        clock_mhz=round(sum(clocks) / len(clocks) / 1000, 1) if clocks else None,
        throttling=Throttling.parse(text),
        cooling=_cooling(root),
        throttle_count=sum(counts) if counts else None,
    )


def read_governor(root: Path = Path("/")) -> str:
    """Return what chooses the clock, such as ``ondemand``; empty where the board does not tell."""
    files = sorted(root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
    return ", ".join(dict.fromkeys(filter(None, map(read_text, files))))


def busy_seconds(root: Path = Path("/")) -> float | None:
    """Return how long all cores together have been busy since boot; None where unknown."""
    first = read_text(root / "proc/stat").partition("\n")[0].split()
    if first[:1] != ["cpu"] or len(first) < 9:
        return None
    # proc(5): user nice system idle iowait irq softirq steal; guests are within user and nice.
    # Stolen time was wanted by another virtual machine: to us that is load like any other.
    user, nice, system, _idle, _wait, irq, softirq, steal = map(int, first[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _cooling(root: Path) -> bool | None:
    """Return whether a cooling device slows the cores down."""
    levels = [
        read_text(folder / "cur_state")
        for folder in root.glob("sys/class/thermal/cooling_device*")
        if "cpufreq" in (kind := read_text(folder / "type").lower()) or kind == "processor"
    ]
    known = [level for level in levels if level.isdigit()]
    return any(level != "0" for level in known) if known else None


def _ask_firmware() -> str:
    program = shutil.which("vcgencmd")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "get_throttled"],
            capture_output=True, text=True, check=False, timeout=_VCGENCMD_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
