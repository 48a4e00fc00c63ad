"""What lsblk says of a machine's disks: a small language for trees.

For what was not recorded. `tests/support/boards/recorded.py` reads what machines really said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

GB = 10**9
COLUMNS = (
    "name", "kname", "path", "maj:min", "type", "size", "ro", "tran", "vendor", "model", "serial",
    "pttype", "fstype", "label", "uuid",
)  # fmt: skip


@dataclass
class Node:
    """A device and what stands on it."""

    name: str
    values: dict[str, Any]
    children: list[Node] = field(default_factory=list)


def node(name: str, kind: str, size: float, *children: Node, **values: Any) -> Node:
    row = {"type": kind, "size": int(size), "path": f"/dev/{name}", "mounts": (), **values}
    return Node(name, row, list(children))


def disk(name: str, size: float, *children: Node, tran: str | None = "sata", **values: Any) -> Node:
    return node(name, "disk", size, *children, tran=tran, **values)


def part(
    name: str, size: float = GB, *children: Node, at: str | None = None, **values: Any
) -> Node:
    return node(name, "part", size, *children, mounts=(at,) if at else (), **values)


def on(name: str, kind: str, *children: Node, at: str | None = None, **values: Any) -> Node:
    """A mapping or an array; its kernel name differs from the name below /dev/mapper."""
    return node(name, kind, GB, *children, mounts=(at,) if at else (), **values)


def usb(name: str = "sdb", size: float = 32 * GB, *children: Node, **values: Any) -> Node:
    values = {"model": "STORAGE DEVICE", "serial": "0123"} | values
    return disk(name, size, *children, tran="usb", **values)


def sd(name: str = "mmcblk0", size: float = 32 * GB, *children: Node, **values: Any) -> Node:
    """A card in a reader on the MMC bus, of whose transport lsblk before 2.39 knows nothing."""
    return disk(name, size, *children, tran=None, **values)


def answer(nodes: list[Node]) -> str:
    """Return lsblk's JSON."""
    return json.dumps({"blockdevices": [_row(n) for n in nodes]})


def _row(n: Node) -> dict[str, Any]:
    data: dict[str, Any] = dict.fromkeys(COLUMNS)
    data |= {k: v for k, v in n.values.items() if k in COLUMNS}
    data |= {"name": n.name, "kname": n.values.get("kname", n.name)}
    data["ro"] = bool(data["ro"])
    data["maj:min"] = f"8:{sum(n.name.encode()) % 256}"
    data["mountpoints"] = list(n.values["mounts"]) or [None]
    if n.children:
        data["children"] = [_row(c) for c in n.children]
    return data
