"""Which block devices must not be overwritten, and why: pure functions over what the machine said.

Two kinds of objection. *Final*: the device is in use, or an image cannot go there at all.
*Forcible*: it looks like something else than a card, such as an internal disk; a person who means
it says so with ``--force-device`` and its name. A plain card or stick has none.

Whatever is not known to be harmless is refused: kinds of device and kinds of contents alike.

They judge what was read a moment ago. `boards.flash.card` opens the device exclusively afterwards,
with which the kernel refuses whatever is mounted or claimed by then, in any container.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from boards.flash.disks import Disk, walk

__all__ = ["LARGEST", "Objection", "candidates", "may_flash", "objections"]

# Cards for boards are sold up to 256 GB; a larger USB disk is more likely somebody's backup.
LARGEST = 300 * 10**9

_WHOLE = "disk"
_PARTITION = "part"
# Where cards and sticks are; anything else is built in, or far away.
_BUSES = ("usb", "mmc")
# What drivers of hardware call whole disks. Other names belong to software, networks and the boot
# areas of soldered memory.
_HARDWARE = re.compile(r"(sd[a-z]+|vd[a-z]+|nvme\d+n\d+|mmcblk\d+)")
# Contents of one device alone: overwriting them harms nothing else.
_PLAIN = frozenset(
    ("", "btrfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "iso9660", "jbd", "ntfs",
     "squashfs", "swap", "udf", "vfat", "xfs", "xfs_external_log", "DM_verity_hash")
)  # fmt: skip
# Contents of volumes; lsblk shows when these are in use.
_VOLUMES = {"LVM2_member": "LVM", "crypto_LUKS": "encryption", "BitLocker": "encryption",
            "DM_integrity": "dm-integrity"}  # fmt: skip
_RAID = "_raid_member"
# Where live systems mount their medium and what is on it.
_LIVE = ("/cdrom", "/run/live")


@dataclass(frozen=True)
class Objection:
    """One reason against a target.

    Attributes:
        code: A short stable word, such as ``system``.
        why: The rest of a sentence that begins with the device's path.
        forcible: Whether ``--force-device`` overrules it.
    """

    code: str
    why: str
    forcible: bool = False


def objections(
    target: Disk, disks: tuple[Disk, ...], need: int = 0, *, loops: bool = False
) -> tuple[Objection, ...]:
    """Return all that speaks against overwriting `target`, final ones first.

    Args:
        target: One of `disks`, or of what stands on them.
        disks: All of the machine's.
        need: Bytes that the image takes; 0 when that is not known yet.
        loops: Allow loop devices that nothing uses; for tests.
    """
    loop = loops and target.kind == "loop"
    found = [
        *_used(target, disks),
        *_unfit(target, need, loop),
        *([] if loop else _unlike_a_card(target, disks)),
    ]
    return tuple(sorted(found, key=lambda o: o.forcible))


def may_flash(found: tuple[Objection, ...], *, forced: bool) -> bool:
    """Return whether these objections leave a way."""
    return all(o.forcible and forced for o in found)


def candidates(
    disks: tuple[Disk, ...], *, loops: bool = False
) -> tuple[tuple[Disk, tuple[Objection, ...]], ...]:
    """Return whole devices with what speaks against each, good ones first."""
    kinds = (_WHOLE, "loop") if loops else (_WHOLE,)
    rows = [(d, objections(d, disks, loops=loops)) for d in disks if d.kind in kinds]
    return tuple(sorted(rows, key=lambda row: len(row[1])))


def _used(target: Disk, disks: tuple[Disk, ...]) -> Iterator[Objection]:
    seen = tuple(_seen_in_use(target, disks))
    yield from seen
    if not seen and any(d.busy for d in target.everything()):
        yield Objection(
            "busy",
            "is in use, but nothing shows by what: a mount in a container, a file system's "
            "journal, a driver",
        )
    if writers := sorted({w for d in target.everything() for w in d.writers}):
        yield Objection("open", f"is open for writing in {', '.join(writers)} (end that first)")


def _seen_in_use(target: Disk, disks: tuple[Disk, ...]) -> Iterator[Objection]:
    parts = tuple(target.everything())
    mounts = sorted({m for d in parts for m in d.mounts})
    if {d.name for d in parts} & _system_disks(disks):
        yield Objection("system", "belongs to the disk from which this system runs")
    if "[SWAP]" in mounts:
        yield Objection("swap", "is in use as swap (end that with swapoff)")
    if points := [m for m in mounts if m != "[SWAP]"]:
        yield Objection("mounted", f"is mounted at {', '.join(points)} (umount it first)")
    # Not by kind alone: bcache's own devices are of kind disk.
    if holders := sorted({d.name for d in parts if d.kind != _PARTITION} - {target.name}):
        yield Objection("held", f"is in use by {', '.join(holders)}")
    pools = {d.uuid for d in walk(disks) if d.mounts and d.filesystem == "btrfs" and d.uuid}
    if any(d.uuid in pools for d in parts):
        yield Objection("pool", "is one of several disks of a file system that is mounted")


def _system_disks(disks: tuple[Disk, ...]) -> set[str]:
    """Return the names of all devices that have / on them, or stand beside it on one disk."""
    found: set[str] = set()
    for disk in disks:
        if any(_is_system(m) for d in disk.everything() for m in d.mounts):
            found |= {d.name for d in disk.everything()}
    return found


def _is_system(mount: str) -> bool:
    return mount in ("/", "/usr") or mount.startswith(("/boot", *_LIVE))


def _unfit(target: Disk, need: int, loop: bool) -> Iterator[Objection]:
    if target.kind == _PARTITION:
        yield Objection("partition", "is a partition, and an image takes the whole device")
    elif target.kind != _WHOLE and not loop:
        yield Objection("kind", f"is not a disk but of kind {target.kind}")
    elif not loop and not _HARDWARE.fullmatch(target.name):
        yield Objection("virtual", "is not a device that a card can be (such as sda or mmcblk0)")
    if target.read_only:
        yield Objection("read-only", "is read-only (look for the card's lock switch)")
    if target.size == 0:
        yield Objection("empty", "has no medium in it")
    elif target.size < need:
        yield Objection(
            "small", f"is too small: {target.size:,} bytes, and the image takes {need:,}"
        )


def _unlike_a_card(target: Disk, disks: tuple[Disk, ...]) -> Iterator[Objection]:
    # Not by lsblk's RM and HOTPLUG: cards and USB disks have neither, or either, by its version.
    if target.bus not in _BUSES:
        bus = target.bus or "an unknown bus"
        yield Objection("fixed", f"is not a removable medium (it is on {bus})", True)
    elif target.card == "MMC":
        yield Objection("emmc", "is flash memory soldered to this board, not a card", True)
    if target.size > LARGEST:
        yield Objection("large", f"is larger than cards are ({target.size / 1e9:,.0f} GB)", True)
    held = {d.filesystem for d in target.everything()} - _PLAIN
    if members := sorted({name for f in held if (name := _volume(f))}):
        yield Objection("member", f"is a member of {', '.join(members)}", True)
    if unknown := sorted(f for f in held if not _volume(f)):
        yield Objection(
            "silent",
            f"holds {', '.join(unknown)}, and whether something uses that cannot be seen from "
            "here (if not, clear it with wipefs --all)",
        )
    spare = any(d.filesystem == "LVM2_member" and not d.children for d in target.everything())
    if spare and any(d.kind == "lvm" for d in walk(disks)):
        # A disk without a share in any volume is not held, but its group breaks without it.
        yield Objection(
            "group",
            "may belong to an LVM volume group that is in use, which cannot be seen from here "
            "(if not, clear it with wipefs --all)",
        )
    if not any(m == "/" or m.startswith(_LIVE) for d in walk(disks) for m in d.mounts):
        # In a container, or with / on ZFS or on the network, no disk shows what it is used for.
        # A live system's / is on no disk either, but what it stands on shows.
        yield Objection(
            "blind", "cannot be told from the system disk, since / is on no disk seen here", True
        )


def _volume(filesystem: str) -> str:
    return "a RAID array" if filesystem.endswith(_RAID) else _VOLUMES.get(filesystem, "")
