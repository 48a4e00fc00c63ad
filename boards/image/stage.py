"""The part of a build that is root of a namespace: a program of its own, told by a JSON file."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from boards.image.finish import boot_tree, clamp_times, clean, data_tree, system_files
from boards.image.packages import Deb
from boards.image.partitions import make_ext4, make_fat
from boards.image.rootfs import configure, unpack
from boards.image.wheels import Wheel
from boards.onboard.place import place_files
from boards.onboard.settings import Settings
from boards.system.namespace import emulate_arm64
from edge_kit.errors import ImageError
from edge_kit.host.signals import ignore_interrupt
from edge_kit.records import from_json

__all__ = ["FILE_SYSTEMS", "Stage", "main"]

FILE_SYSTEMS = ("boot.fat", "root.ext4", "data.ext4")
PYTHON = "3.11"
_SPARE_MIB = {"root": 128, "data": 64}


@dataclass(frozen=True)
class Stage:
    """What the stage works from; it travels to the program as JSON.

    Attributes:
        work: An empty directory; the file systems appear in it.
        debs: Packages of Debian.
        wheels: Python packages.
        package: The directory of ``edge_kit``.
        settings: Text of the device's settings.
        bundle: The bundle's directory.
        model: Name of its directory on the device.
        photos: Directory to put beside it, or None.
        firmware: Whether a Raspberry Pi should start from it.
        epoch: Unix time of the image; None for that of the newest file in a package.
    """

    work: Path
    debs: list[Deb]
    wheels: list[Wheel]
    package: Path
    settings: str
    bundle: Path
    model: str
    photos: Path | None
    firmware: bool
    epoch: int | None


def run(stage: Stage) -> None:
    """Make the file systems.

    Raises:
        ImageError: Anything failed.
    """
    root, boot, data = (stage.work / name for name in ("root", "boot", "data"))
    for folder in (root, boot, data):
        folder.mkdir()
    settings = Settings.parse(stage.settings)
    emulate_arm64()
    newest = unpack(stage.debs, root, _say)
    epoch = newest if stage.epoch is None else stage.epoch
    (stage.work / "epoch").write_text(f"{epoch}\n", encoding="ascii")
    place_files(root, settings)
    configure(root, epoch, _say)
    _say("placing edge-kit and the bundle")
    clean(root, epoch)
    system_files(root, stage.package, stage.wheels, PYTHON)
    boot_tree(root, boot, settings, stage.firmware)
    data_tree(root, data, stage.bundle, stage.model, stage.photos)
    _say("making file systems")
    make_fat(boot, stage.work / "boot.fat", epoch)
    for name, tree, label, number in (("root", root, "EDGEROOT", 2), ("data", data, "EDGEDATA", 3)):
        clamp_times(tree, epoch)
        out = stage.work / f"{name}.ext4"
        make_ext4(tree, out, label, number, epoch, _SPARE_MIB[name])


def _say(text: str) -> None:
    sys.stderr.write(f"edge-kit: {text}\n")


def main(arguments: list[str]) -> int:
    """Run the stage that a file tells of; what fails becomes a file too, for the caller."""
    os.umask(0o022)
    ignore_interrupt()
    stage = from_json(Stage, json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
    try:
        run(stage)
    except (ImageError, OSError) as error:
        (stage.work / "failed").write_text(str(error), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
