"""What a board is going through while it is measured: heat, clock, throttling, other load."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge_kit.host.board import read_numbers, read_text

__all__ = ["BoardState", "Throttling", "busy_seconds", "read_governor", "read_state"]

# Below soc/soc:firmware on most; the names of both folders vary with the board.
_FIRMWARE = "sys/devices/platform/soc*/*firmware/get_throttled"
_VCGENCMD_S = 5.0
# Raspberry Pi documentation, vcgencmd get_throttled: bits 0 to 3 tell of now, the same four
# 16 bits higher of any time since the board started.
_BITS = ("under-voltage", "clock capped", "throttled", "soft temperature limit")
_SINCE_BOOT = 16


@dataclass(frozen=True)
class Throttling:
    """The throttling bits of a Raspberry Pi, such as ``0x50005``."""

    bits: int

    @classmethod
    def parse(cls, text: str) -> Throttling | None:
        """Read ``throttled=0x50005`` (vcgencmd) or ``50005`` (sysfs); None for anything else."""
        try:
            bits = int(text.strip().rpartition("=")[2], 16)
        except ValueError:
            return None
        return cls(bits) if bits >= 0 else None

    @property
    def now(self) -> tuple[str, ...]:
        """What holds at this moment."""
        return tuple(name for bit, name in enumerate(_BITS) if self.bits >> bit & 1)

    @property
    def since_boot(self) -> tuple[str, ...]:
        """What held at any time since the board started."""
        return tuple(name for bit, name in enumerate(_BITS) if self.bits >> bit + _SINCE_BOOT & 1)

    def __str__(self) -> str:
        """Return the number as the firmware writes it."""
        return f"{self.bits:#x}"

    def sentence(self) -> str:
        """Return both for people."""
        now, before = " and ".join(self.now), " and ".join(self.since_boot)
        if not self.bits:
            return "never throttled since boot"
        if self.now == self.since_boot:
            return f"{now}, now and since boot"
        if not now:
            return f"{before} since boot, not now"
        return f"{now} now; {before or 'nothing'} since boot"


@dataclass(frozen=True)
class BoardState:
    """One look at the board; None where it does not tell.

    Attributes:
        temperature_c: Hottest zone, degrees Celsius.
        clock_mhz: Mean of the cores' clocks.
        throttled: A Raspberry Pi's bits, such as ``0x50005``.
        throttled_now: What the lower ones say, in words.
        throttled_since_boot: What the upper ones say.
        cooling: The kernel holds the cores' clock down because of heat.
        throttle_count: How often x86 cores throttled since boot, added up.
    """

    temperature_c: float | None = None
    clock_mhz: float | None = None
    throttled: str | None = None
    throttled_now: tuple[str, ...] = ()
    throttled_since_boot: tuple[str, ...] = ()
    cooling: bool | None = None
    throttle_count: int | None = None

    @property
    def throttling(self) -> Throttling | None:
        """The bits as a number."""
        return Throttling.parse(self.throttled or "")


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
    bits = Throttling.parse(told or (vcgencmd or _ask_firmware)())
    return BoardState(
        # Millidegrees and kHz: Documentation/ABI/testing/sysfs-class-thermal and cpu-freq
        temperature_c=round(max(zones) / 1000, 1) if zones else None,
        clock_mhz=round(sum(clocks) / len(clocks) / 1000, 1) if clocks else None,
        throttled=str(bits) if bits else None,
        throttled_now=bits.now if bits else (),
        throttled_since_boot=bits.since_boot if bits else (),
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
