"""``edge-kit image flash``."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import click

from boards.bmap import BlockMap, find_map, read_map, whole_map
from boards.card import BlockCard
from boards.disks import Disk, find
from boards.flash import flash as write_and_verify
from boards.guards import Objection, candidates, may_flash, objections
from boards.progress import Meter
from boards.reading import read_disks
from boards.source import ImageSource, open_source
from edge_kit.errors import ImageError, UsageError

__all__ = ["flash"]

# Loop devices as targets, for the tests: nobody's card is one.
LOOPS = "EDGE_KIT_TEST_LOOP"
_PATH = click.Path(path_type=Path)


@click.command(
    epilog="\b\nExamples:\n"
    "  edge-kit image flash                               what could be written to\n"
    "  sudo edge-kit image flash edge.img.xz /dev/sdb     asks, writes, reads back\n"
    "  sudo edge-kit image flash edge.img.xz sdb --yes --serial 0123456789\n"
    "\b\nA block map beside the image (edge.img.xz.bmap, edge.img.bmap) is used when there."
)
@click.argument("image", required=False, type=_PATH)
@click.argument("device", required=False)
@click.option("--bmap", "map_file", type=_PATH, help="Block map, when it is not beside the image.")
@click.option("--no-bmap", is_flag=True, help="Write the whole image, holes too.")
@click.option("--force-device", metavar="NAME",
              help="Take this device although it does not look like a card. Its kernel name. "
                   "Disks in use are refused all the same.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask; needs --serial.")
@click.option("--serial", help="The device's serial number, which has to match.")
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
def flash(
    image: Path | None, device: str | None, map_file: Path | None, no_bmap: bool,
    force_device: str | None, yes: bool, serial: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Write an image (raw, .xz or .gz) to a card, and verify it by reading it back.

    Everything on the card is lost. Without a device, this lists what could be written to.
    """
    loops = os.environ.get(LOOPS) == "1"
    if image is None or device is None:
        _list(loops, as_json)
        if image is not None:
            raise UsageError("no device was named", "name one of the list, such as /dev/sdb")
        return
    if yes and not serial:
        raise UsageError(
            "--yes needs the device's serial number",
            "add --serial, as listed by: edge-kit image flash",
        )
    if no_bmap and map_file is not None:
        raise UsageError("--bmap and --no-bmap exclude each other", "leave one out")
    admit = _Admission(device, force_device, serial, loops)
    admit.look(0)
    source = open_source(image)
    block_map = _map(source, map_file, no_bmap)
    target = admit.look(source.size)
    if not yes:
        _confirm(target, source, block_map)
        # While the person thought, the card may have been changed for another.
        if admit.look(source.size) != target:
            raise ImageError(f"{target.path} changed meanwhile", "list the candidates again")
    signal.signal(signal.SIGTERM, _interrupt)
    meter = Meter()
    with BlockCard(target) as card:
        try:
            done = write_and_verify(source, block_map, card, meter)
        except KeyboardInterrupt:
            meter.end()
            click.echo("interrupted: the card is not usable; flash it again", err=True)
            raise
        finally:
            meter.end()
        card.reread_partitions()
    if as_json:
        row = {"device": target.path, "image_size": done.image_size, "written": done.written,
               "verified": done.verified}  # fmt: skip
        click.echo(json.dumps(row))
    else:
        click.echo(f"{target.path} holds {image}: written, read back, equal. It can be taken out.")


class _Admission:
    """Looks at the machine's disks anew and lets the target pass or raises."""

    def __init__(self, device: str, force: str | None, serial: str | None, loops: bool) -> None:
        self._device = device
        self._force = force
        self._serial = serial
        self._loops = loops

    def look(self, need: int) -> Disk:
        disks = read_disks()
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
        if self._serial is not None and self._serial != target.serial:
            has = f"the serial number {target.serial!r}" if target.serial else "no serial number"
            raise ImageError(
                f"{target.path} has {has}, not {self._serial!r}", "list the candidates again"
            )
        return target


def _refusal(target: Disk, found: tuple[Objection, ...]) -> ImageError:
    final = [o for o in found if not o.forcible]
    # One that cannot be overruled is enough; the others would only bury it.
    what = f"{target.path} " + ", and ".join(o.why for o in final or found)
    if not final:
        return ImageError(
            what, f"if you do mean this device and all on it, add --force-device {target.name}"
        )
    return ImageError(what, "nothing was written; see what else there is: edge-kit image flash")


def _map(source: ImageSource, map_file: Path | None, no_bmap: bool) -> BlockMap:
    file = map_file or (None if no_bmap else find_map(source.path))
    return whole_map(source.size) if file is None else read_map(file)


def _confirm(target: Disk, source: ImageSource, block_map: BlockMap) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            "nobody is there to confirm (standard input is no terminal)",
            "run it in a terminal, or with --yes and --serial",
        )
    click.echo(_line(target), err=True)
    click.echo(
        f"All of it will be lost: {source.path.name} goes there "
        f"({_size(source.size)}, of which {_size(block_map.mapped)} are written).",
        err=True,
    )
    answer = click.prompt(f"Type {target.name} to go on", default="", show_default=False, err=True)
    if answer.strip() not in (target.name, target.path):
        raise ImageError("not confirmed, so nothing was written")


def _list(loops: bool, as_json: bool) -> None:
    rows = candidates(read_disks(), loops=loops)
    if as_json:
        click.echo(json.dumps({"devices": [_row(d, found) for d, found in rows]}, indent=1))
    else:
        click.echo("\n".join(_lines(rows)))


def _row(disk: Disk, found: tuple[Objection, ...]) -> dict[str, object]:
    return {
        "path": disk.path, "model": disk.model, "size": disk.size, "bus": disk.bus,
        "serial": disk.serial, "contents": disk.contents,
        "objections": [{"code": o.code, "why": o.why, "forcible": o.forcible} for o in found],
    }  # fmt: skip


def _lines(rows: tuple[tuple[Disk, tuple[Objection, ...]], ...]) -> Iterator[str]:
    good = [disk for disk, found in rows if not found]
    yield "Can be written to:" if good else "No card or stick was found that could be written to."
    for disk in good:
        yield f"  {_line(disk)}"
    others = [(disk, found) for disk, found in rows if found]
    if others:
        yield "Refused:"
    for disk, found in others:
        yield f"  {_line(disk)}"
        yield from (f"      {o.why}" for o in found)


def _line(disk: Disk) -> str:
    serial = f", serial {disk.serial}" if disk.serial else ""
    return (
        f"{disk.path}  {disk.model or 'unnamed'}, {_size(disk.size)}, {disk.bus or disk.kind}"
        f"{serial}. On it: {disk.contents}"
    )


def _size(count: int) -> str:
    # As printed on cards: powers of ten.
    return f"{count / 1e9:,.1f} GB" if count >= 10**9 else f"{count / 1e6:,.1f} MB"


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    """Turn SIGTERM into what Ctrl-C does, so that the person is told of the card."""
    raise KeyboardInterrupt
