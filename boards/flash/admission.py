"""Whether one target may be written: judged before the image is read, and after somebody confirmed.

The guards judge what was read a moment ago; disks come and go. So the target is read again each
time that matters, and `boards.flash.card` opens only the device that was judged.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from boards.flash.card import SUDO
from boards.flash.disks import Disk, find
from boards.flash.guards import Objection, may_flash, objections
from edge_kit.errors import ImageError, UsageError

__all__ = ["Admission"]

_AGAIN = "list the candidates again: edge-kit image flash"


class Admission:
    """Admits a target, or says why not.

    Args:
        device: What the person named.
        force: The device that ``--force-device`` names, if any.
        serial: The serial number that the target must have, if any.
        loops: Allow loop devices; for tests.
        alone: Nobody confirms, so the serial number has to tell the target from all others.
        read: Reads the machine's disks.
    """

    def __init__(
        self, device: str, force: str | None, serial: str | None, *, loops: bool, alone: bool,
        read: Callable[[], tuple[Disk, ...]],
    ) -> None:  # fmt: skip
        self._device = device
        self._force = force
        self._serial = serial
        self._loops = loops
        self._alone = alone
        self._read = read

    def look(self, need: int) -> Disk:
        """Read the disks and return the target.

        Args:
            need: Bytes that the image takes; 0 when that is not known yet.

        Raises:
            UsageError: ``--force-device`` names another device.
            ImageError: The target must not, or cannot, be written.
        """
        disks = self._read()
        target = find(disks, self._device)
        forced = self._force is not None
        if forced and self._force not in (target.name, target.path):
            raise UsageError(
                f"--force-device names {self._force}, and the device is {target.path}",
                "both have to name the same",
            )
        found = objections(target, disks, need, loops=self._loops)
        if not may_flash(found, forced=forced):
            raise _refusal(target, found)
        self._check_serial(target, disks)
        _check_rights(target.path)
        return target

    def _check_serial(self, target: Disk, disks: tuple[Disk, ...]) -> None:
        if self._serial is None:
            return
        if not target.serial:
            raise ImageError(
                f"{target.path} has no serial number, so it cannot be confirmed by one",
                "leave out --yes and --serial, and type its name when asked",
            )
        if self._serial != target.serial:
            raise ImageError(
                f"{target.path} has the serial number {target.serial!r}, not {self._serial!r}",
                _AGAIN,
            )
        twins = [d.path for d in disks if d.serial == target.serial and d.name != target.name]
        if self._alone and twins:
            raise ImageError(
                f"{target.path} has the serial number {target.serial!r}, and so has "
                f"{', '.join(twins)}: it does not tell one from the other",
                "unplug the other, or leave out --yes and type the name when asked",
            )


def _refusal(target: Disk, found: tuple[Objection, ...]) -> ImageError:
    final = [o for o in found if not o.forcible]
    # One that cannot be overruled is enough; the others would only bury it.
    what = f"{target.path} " + ", and ".join(o.why for o in final or found)
    if not final:
        return ImageError(
            what, f"if you do mean this device and all on it, add --force-device {target.name}"
        )
    return ImageError(what, "nothing was written; see what else there is: edge-kit image flash")


def _check_rights(path: str) -> None:
    """Say before anything is asked or read that this user may not write.

    Raises:
        ImageError: It says how to get that right.
    """
    if os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        return
    raise ImageError(f"{path} may not be written by this user", SUDO)
