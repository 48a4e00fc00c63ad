"""Which block devices must not be overwritten, and why: pure functions over what lsblk said.

Three kinds of objection. *Never*: the device is in use, or an image cannot go there at all. *Unless
forced*: it looks like something else than a card, such as an internal disk; a person who means it
says so with ``--force-device`` and its name. And none, for a plain card or stick.

They see what lsblk saw a moment ago. `boards.flash.card` opens the device exclusively afterwards,
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
# Signatures of volumes that other disks belong to, when nothing uses them at the moment; beside
# these, all whose names end in _member.
_MEMBERS = {
    "LVM2_member": "LVM", "LVM1_member": "LVM", "crypto_LUKS": "encryption",
    "BitLocker": "encryption", "DM_snapshot_cow": "a snapshot", "DM_integrity": "dm-integrity",
    "stratis": "Stratis", "promise_fasttrack_raid": "a RAID array",
}  # fmt: skip
# In use without any trace in lsblk: their kernel modules hold the disks, not the device mapper.
_SILENT = {"zfs_member": "ZFS", "ceph_bluestore": "Ceph", "bcachefs": "bcachefs",
           "bcache": "bcache", "drbd": "DRBD", "oracleasm": "Oracle ASM"}  # fmt: skip
_POOLED = ("btrfs", "bcachefs")
# Where live systems mount their medium and what is on it.
_LIVE = ("/cdrom", "/run/live", "/run/initramfs")
_EMMC_EXTRA = re.compile(r"mmcblk\d+(boot\d+|rpmb|gp\d+)$|mtdblock\d")
# Devices that drivers make of software or of a network, whatever kind lsblk calls them.
_VIRTUAL = re.compile(
    r"((zram|ram|loop|fd|sr|md_?d?|dm-|nbd|rbd|rnbd|drbd|zd|bcache|pktcdvd|ublkb)\d|etherd)"
)


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
    """Return all that speaks against overwriting `target`, the gravest first.

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
            "is in use, though nothing shows by what: a mount in a container, a file system's "
            "journal, a driver",
        )
    if writers := sorted({w for d in target.everything() for w in d.writers}):
        yield Objection("open", f"is open for writing in {', '.join(writers)} (end that first)")
    if silent := sorted({_SILENT[d.filesystem] for d in target.everything()
                         if d.filesystem in _SILENT}):  # fmt: skip
        yield Objection(
            "silent",
            f"was part of {', '.join(silent)}, and whether it still is cannot be seen from here "
            "(if not, clear it with wipefs --all)",
        )


def _seen_in_use(target: Disk, disks: tuple[Disk, ...]) -> Iterator[Objection]:
    parts = tuple(target.everything())
    names = {d.name for d in parts}
    # A device of several parents may carry its mounts at one of them only.
    twins = tuple(d for d in walk(disks) if d.name in names)
    mounts = sorted({m for d in (*parts, *twins) for m in d.mounts})
    above = _system_disks(disks)
    if names & above:
        yield Objection("system", "belongs to the disk from which this system runs")
    if "[SWAP]" in mounts:
        yield Objection("swap", "is in use as swap (end that with swapoff)")
    if points := [m for m in mounts if m != "[SWAP]"]:
        yield Objection("mounted", f"is mounted at {', '.join(points)} (umount it first)")
    # Not by kind alone: bcache's own devices are of kind disk.
    if holders := sorted({d.name for d in parts if d.kind != _PARTITION} - {target.name}):
        yield Objection("held", f"is in use by {', '.join(holders)}")
    pools = {d.uuid for d in walk(disks) if d.mounts and d.filesystem in _POOLED and d.uuid}
    if any(d.uuid in pools for d in parts):
        yield Objection("pool", "is one of several disks of a file system that is mounted")


def _system_disks(disks: tuple[Disk, ...]) -> set[str]:
    """Return the names of all devices that have / on them, or stand beside it on one disk."""
    found: set[str] = set()
    for disk in disks:
        if any(_is_system(d) for d in disk.everything()):
            found |= {d.name for d in disk.everything()}
    return found


def _is_system(disk: Disk) -> bool:
    return any(
        m in ("/", "/usr", "/nix/store", "/sysroot") or m.startswith(("/boot", "/efi", *_LIVE))
        for m in disk.mounts
    )


def _unfit(target: Disk, need: int, loop: bool) -> Iterator[Objection]:
    if target.kind == _PARTITION:
        yield Objection("partition", "is a partition, and an image takes the whole device")
    elif target.kind != _WHOLE and not loop:
        yield Objection("kind", f"is no disk but of kind {target.kind}")
    if _EMMC_EXTRA.match(target.name):
        yield Objection("emmc-boot", "is the boot area of soldered flash memory")
    if _VIRTUAL.match(target.name) and not loop:
        yield Objection("virtual", "is no card but a device that software makes")
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
        yield Objection("fixed", f"is no removable medium (it is on {bus})", True)
    elif target.card == "MMC" or any(d.name == f"{target.name}boot0" for d in walk(disks)):
        yield Objection("emmc", "is flash memory soldered to this board, not a card", True)
    if target.size > LARGEST:
        yield Objection("large", f"is larger than cards are ({target.size / 1e9:,.0f} GB)", True)
    if members := sorted({m for d in target.everything() if (m := _member(d.filesystem))}):
        yield Objection("member", f"is a member of {', '.join(members)}", True)
    waits = (d for d in target.everything() if not d.mounts)
    if points := sorted({p for d in waits for p in d.planned}):
        yield Objection(
            "planned",
            f"is not mounted now, but this machine's /etc/fstab wants it at {', '.join(points)}",
            True,
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


def _member(filesystem: str) -> str:
    if filesystem in _SILENT:
        return ""  # objected to already
    if filesystem.endswith("_raid_member"):
        return "a RAID array"
    return _MEMBERS.get(filesystem, "a volume" if filesystem.endswith("_member") else "")
