"""The throttling bits of a Raspberry Pi, in words."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Throttling"]

# Raspberry Pi documentation, vcgencmd get_throttled: bits 0 to 3 tell of now, the same four
# 16 bits higher of any time since the board started.
_BITS = ("under-voltage", "clock capped", "throttled", "soft temperature limit")
_SINCE_BOOT = 16


@dataclass(frozen=True)
class Throttling:
    """What the firmware says.

    Attributes:
        bits: The number as it comes, such as ``0x50005``.
    """

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
