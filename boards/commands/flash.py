"""``edge-kit image flash``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from boards.flash.admission import Admission
from boards.flash.bmap import BlockMap, find_map, read_map, whole_map
from boards.flash.card import BlockCard
from boards.flash.checksum import check_checksum, find_checksum
from boards.flash.disks import Disk
from boards.flash.guards import Objection, candidates
from boards.flash.reading import read_disks
from boards.flash.source import ImageSource, open_source
from boards.flash.write import flash as write_and_verify
from edge_kit.errors import ImageError, UsageError
from edge_kit.host.signals import signals_interrupt
from edge_kit.terminal.progress import ProgressBars

__all__ = ["flash"]

# Loop devices as targets, for the tests: nobody's card is one.
LOOPS = "EDGE_KIT_TEST_LOOP"
_PATH = click.Path(path_type=Path)


@click.command(
    epilog="\b\nExamples:\n"
    "  edge-kit image flash                               what could be written to\n"
    "  sudo edge-kit image flash edge.img.xz /dev/sdb     asks, writes, reads back\n"
    "  sudo edge-kit image flash edge.img.xz sdb --yes --serial 0123456789\n"
    "\b\nA block map beside the image (edge.img.xz.bmap, edge.img.bmap) is used when there,\n"
    "and a checksum beside it (edge.img.xz.sha256) is compared first."
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
@signals_interrupt()
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
        raise UsageError("--bmap and --no-bmap cannot be used together", "leave one out")
    admit = Admission(device, force_device, serial, loops=loops, alone=yes, read=read_disks)
    admit.look(0)
    source = open_source(image)
    block_map = _map(source, map_file, no_bmap)
    target = admit.look(source.size)
    if not (yes or sys.stdin.isatty()):
        raise UsageError(
            "nobody can confirm: standard input is not a terminal",
            "run it in a terminal, or with --yes and --serial",
        )
    with ProgressBars(named=True) as progress:
        if (sums := find_checksum(image)) is not None:
            check_checksum(image, sums, _in_mebibytes(progress))
            progress.close()
        if not yes:
            _confirm(target, source, block_map)
        # The card may have been exchanged since, or something may use it now.
        if admit.look(source.size) != target:
            raise ImageError(
                f"{target.path} has changed since you were asked; nothing was written",
                "list the candidates again: edge-kit image flash",
            )
        with BlockCard(target) as card:
            try:
                done = write_and_verify(source, block_map, card, _in_mebibytes(progress))
            except KeyboardInterrupt:
                _tell_interrupted(progress)
                raise
            card.reread_partitions()
    if as_json:
        row = {"device": target.path, "image_size": done.image_size, "written": done.written,
               "verified": done.verified}  # fmt: skip
        click.echo(json.dumps(row))
    else:
        click.echo(f"{target.path} holds {image}: written, read back, equal. It can be taken out.")


def _map(source: ImageSource, map_file: Path | None, no_bmap: bool) -> BlockMap:
    file = map_file or (None if no_bmap else find_map(source.path))
    return whole_map(source.size) if file is None else read_map(file)


def _confirm(target: Disk, source: ImageSource, block_map: BlockMap) -> None:
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


def _in_mebibytes(progress: ProgressBars) -> Callable[[str, int, int], None]:
    """Return what shows bytes as MiB."""
    return lambda stage, done, total: progress.step(f"{stage} (MiB)", done >> 20, total >> 20)


def _tell_interrupted(progress: ProgressBars) -> None:
    verifying = progress.stage.startswith("verifying")
    state = "was written but not verified" if verifying else "is not usable"
    progress.close()
    click.echo(f"interrupted: the card {state}; flash it again", err=True)
