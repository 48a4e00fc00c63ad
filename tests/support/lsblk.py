"""What lsblk says on many machines: a small language for trees, and the dialects of its versions.

For what cannot be recorded here. `tests/support/recorded.py` reads what machines really said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

GB = 10**9
COLUMNS = (
    "name", "kname", "path", "pkname", "maj:min", "type", "size", "ro", "rm", "hotplug", "tran",
    "vendor", "model", "serial", "pttype", "fstype", "label", "uuid", "mountpoint",
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
    values = {"rm": 1, "hotplug": 1, "model": "STORAGE DEVICE", "serial": "0123"} | values
    return disk(name, size, *children, tran="usb", **values)


def sd(name: str = "mmcblk0", size: float = 32 * GB, *children: Node, **values: Any) -> Node:
    """A card in a reader on the MMC bus: not removable to the kernel, and of no known transport."""
    return disk(name, size, *children, tran=None, **({"rm": 0, "hotplug": 1} | values))


def modern(nodes: list[Node]) -> str:
    """util-linux 2.37 and later: numbers, true and false, a list of mount points."""

    def row(n: Node, parent: str | None) -> dict[str, Any]:
        data = _columns(n, parent)
        for key in ("ro", "rm", "hotplug"):
            data[key] = bool(data[key])
        data["mountpoints"] = list(n.values["mounts"]) or [None]
        if n.children:
            data["children"] = [row(c, n.name) for c in n.children]
        return data

    return json.dumps({"blockdevices": [row(n, None) for n in nodes]})


def old(nodes: list[Node]) -> str:
    """util-linux 2.29 (Debian 9): all is text, one mount point, no PATH, no transport of cards."""

    def row(n: Node, parent: str | None) -> dict[str, Any]:
        data = {k: None if v is None else str(v) for k, v in _columns(n, parent).items()}
        del data["path"]
        if n.children:
            data["children"] = [row(c, n.name) for c in n.children]
        return data

    return json.dumps({"blockdevices": [row(n, None) for n in nodes]})


def flat(nodes: list[Node]) -> str:
    """``lsblk --list``: no nesting; a device of two parents comes twice."""
    rows: list[dict[str, Any]] = []

    def add(n: Node, parent: str | None) -> None:
        data = _columns(n, parent)
        data["mountpoints"] = list(n.values["mounts"]) or [None]
        rows.append(data)
        for child in n.children:
            add(child, n.name)

    for n in nodes:
        add(n, None)
    return json.dumps({"blockdevices": rows})


DIALECTS = {"modern": modern, "old": old, "flat": flat}


def _columns(n: Node, parent: str | None) -> dict[str, Any]:
    data: dict[str, Any] = dict.fromkeys(COLUMNS)
    data |= {k: v for k, v in n.values.items() if k in COLUMNS}
    data |= {"name": n.name, "kname": n.values.get("kname", n.name), "pkname": parent}
    data |= {k: data[k] or 0 for k in ("ro", "rm", "hotplug")}
    data["maj:min"] = f"8:{sum(n.name.encode()) % 256}"
    data["mountpoint"] = next(iter(n.values["mounts"]), None)
    return data
