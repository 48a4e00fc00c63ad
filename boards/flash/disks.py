"""The block devices of this machine, as ``lsblk --json --bytes --output-all`` tells of them.

Parsing is pure, so that guards are tested on what other machines said: util-linux 2.36 and later.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from edge_kit.errors import ImageError

__all__ = ["Disk", "find", "parse_disks", "walk"]


@dataclass(frozen=True)
class Disk:
    """One block device and what is on it.

    Attributes:
        name: The kernel's name, such as ``sdb``.
        path: Such as ``/dev/sdb``.
        kind: lsblk's TYPE: ``disk``, ``part``, ``loop``, ``crypt``, ``lvm``, ``raid1``, ...
        size: Bytes; 0 for a card reader without a card.
        read_only: Whether the kernel refuses to write.
        bus: TRAN: ``usb``, ``mmc``, ``sata``, ``nvme``, ...; empty where unknown.
        model: Maker and model; may be empty.
        serial: Serial number; may be empty.
        number: ``major:minor``.
        table: Partition table, ``dos`` or ``gpt``; may be empty.
        filesystem: What its first bytes say it holds; may be empty.
        label: The file system's label; may be empty.
        uuid: The file system's id; may be empty.
        mounts: Where it is mounted; ``[SWAP]`` for swap in use.
        busy: The kernel does not give it away exclusively: something uses it.
        card: On the MMC bus, ``SD`` or ``MMC`` (soldered); empty elsewhere or when not known.
        writers: Processes that hold it open for writing, as far as can be seen.
        children: What stands on it: partitions, mappings, arrays.
    """

    name: str
    path: str
    kind: str
    size: int
    read_only: bool
    bus: str
    model: str
    serial: str
    number: str
    table: str
    filesystem: str
    label: str
    uuid: str
    mounts: tuple[str, ...]
    busy: bool
    card: str
    writers: tuple[str, ...]
    children: tuple[Disk, ...]

    def everything(self) -> Iterator[Disk]:
        """Yield this device, then all that stands on it."""
        yield self
        for child in self.children:
            yield from child.everything()

    @property
    def contents(self) -> str:
        """Return a few words on what it holds."""
        parts = [d for d in self.everything() if d.filesystem]
        if not parts:
            return f"{self.table} partition table" if self.table else "nothing recognized"
        return ", ".join(f"{d.filesystem} {d.label}".strip() for d in parts)


def walk(disks: tuple[Disk, ...]) -> Iterator[Disk]:
    """Yield every device of all trees; one that has two parents comes twice."""
    for disk in disks:
        yield from disk.everything()


def find(disks: tuple[Disk, ...], path: str) -> Disk:
    """Return the device that a person named, by path, link or bare name.

    Raises:
        ImageError: There is none.
    """
    wanted = path if "/" in path else f"/dev/{path}"
    real = os.path.realpath(wanted)  # /dev/disk/by-id/... are links
    for disk in walk(disks):
        if disk.path in (wanted, real) or f"/dev/{disk.name}" in (wanted, real):
            return disk
    raise ImageError(
        f"{path} is not a block device of this machine",
        "put the card in and list the candidates: edge-kit image flash",
    )


def parse_disks(text: str) -> tuple[Disk, ...]:
    """Read lsblk's JSON.

    Raises:
        ImageError: A device, or what must be known of one, is missing in it.
    """
    try:
        return tuple(map(_disk, json.loads(text)["blockdevices"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ImageError(f"lsblk's answer cannot be read: {error!r}") from None


def _disk(row: Mapping[str, Any]) -> Disk:
    name = row["kname"]
    bus = _text(row, "tran")
    return Disk(
        name=name,
        path=row["path"],
        kind=row["type"],
        size=int(row["size"] or 0),
        read_only=bool(row["ro"]),
        # lsblk before 2.39 knows no transport of SD cards.
        bus=bus or ("mmc" if name.startswith("mmcblk") else ""),
        model=_model(row),
        serial=_text(row, "serial"),
        number=_text(row, "maj:min"),
        table=_text(row, "pttype"),
        filesystem=_text(row, "fstype"),
        label=_text(row, "label"),
        uuid=_text(row, "uuid"),
        mounts=_mounts(row),
        busy=False,
        card="",
        writers=(),
        children=tuple(_disk(child) for child in row.get("children") or ()),
    )


def _model(row: Mapping[str, Any]) -> str:
    # Paravirtual disks have a PCI number for a vendor.
    vendor = _text(row, "vendor")
    words = f"{'' if vendor.startswith('0x') else vendor} {_text(row, 'model')}"
    return " ".join(words.replace("_", " ").split())


def _mounts(row: Mapping[str, Any]) -> tuple[str, ...]:
    points = [*(row.get("mountpoints") or ()), row.get("mountpoint")]
    return tuple(dict.fromkeys(p for p in points if p))


def _text(row: Mapping[str, Any], key: str) -> str:
    return str(row.get(key) or "").strip()
