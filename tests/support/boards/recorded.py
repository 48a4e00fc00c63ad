"""Recorded machines: what they were made to be, what they said, and what the guards shall say.

`scripts/record_lsblk.py` makes `tests/support/boards/lsblk_recordings/*.json` of
`tests/support/boards/machines/*.toml`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from boards.flash.disks import Disk, walk
from boards.flash.reading import Reading, disks_of

HERE = Path(__file__).parent
# What the guest has without use, whatever the machine.
EVERYWHERE = {"/dev/loop?": "kind", "/dev/ram?": "virtual", "/dev/zram?": "virtual"}
MACHINES = tuple(sorted(f.stem for f in (HERE / "machines").glob("*.toml")))


@dataclass(frozen=True)
class State:
    """One machine in one situation, as one version of lsblk saw it."""

    machine: str
    name: str
    version: str
    names: dict[str, str]
    links: dict[str, str]
    expected: tuple[dict[str, str], ...]
    reading: Reading

    @property
    def disks(self) -> tuple[Disk, ...]:
        return disks_of(self.reading)

    def targets(self) -> list[Disk]:
        """Return every device once, whatever stands on whatever."""
        return list({d.name: d for d in walk(self.disks)}.values())

    def expects(self, target: Disk) -> str:
        """Return the objection expected, empty for none.

        What names a device outright goes before what names many, a state before its machine.
        """
        for several in (False, True):
            for table in self.expected:
                for key, code in table.items():
                    if ("*" in key or "?" in key) is several and self._names(key, target):
                        return code
        raise AssertionError(f"{self}: nobody said what to expect of {target.path}")

    def _names(self, key: str, target: Disk) -> bool:
        also = {target.path, *(link for link, path in self.links.items()
                               if path == f"/dev/{target.name}")}  # fmt: skip
        if key.startswith("/"):
            return any(fnmatchcase(path, key) for path in also)
        disk, colon, number = key.partition(":")
        path = self.names[disk] + ("p" if self.names[disk][-1].isdigit() and colon else "")
        number = number.replace("*", r"\d+")
        return re.fullmatch(re.escape(path) + number, target.path) is not None

    def __str__(self) -> str:
        return f"{self.machine}: {self.name} ({self.version})"


@cache
def described(machine: str) -> dict[str, Any]:
    return tomllib.loads((HERE / f"machines/{machine}.toml").read_text(encoding="utf-8"))


@cache
def recorded(machine: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((HERE / f"lsblk_recordings/{machine}.json").read_bytes())
    return data


def states() -> Iterator[State]:
    for machine in MACHINES:
        toml, data = described(machine), recorded(machine)
        by_name = {s["name"]: s for s in toml["states"]}
        for row in data["states"]:
            own = by_name[row["state"]].get("expect", {})
            yield State(
                machine, row["state"], row["util_linux"], data["names"], row["links"],
                (own, toml["expect"], EVERYWHERE), Reading.decode(row["reading"]),
            )  # fmt: skip
