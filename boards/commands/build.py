"""``edge-kit image build``."""

from __future__ import annotations

import os
from pathlib import Path

import click

from boards.data.board import load_board
from boards.image.build import Order, read_settings
from boards.image.build import build as build_image
from boards.image.packages import Mirrors, host_mirrors
from edge_kit.bundle import Bundle
from edge_kit.errors import UsageError
from edge_kit.folders import cache_folder
from edge_kit.host.signals import signals_interrupt
from edge_kit.terminal.command_line import write_message

__all__ = ["build", "default_cache"]

_PATH = click.Path(path_type=Path)


@click.command(
    epilog="\b\nExample:\n"
    "  edge-kit image build --board pi3 --bundle my.ekb --config device.toml --out edge.img.xz\n"
    "\b\nThe configuration is described in docs/images.md."
)
@click.option("--board", required=True, help="Which board; see `edge-kit image boards`.")
@click.option("--bundle", required=True, type=_PATH, help="The bundle that it runs.")
@click.option("--config", required=True, type=_PATH, help="TOML file: network, keys, what to run.")
@click.option("--out", required=True, type=_PATH, help="The image to write, ….img.xz.")
@click.option(
    "--photos",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder to put into the image, at /var/lib/edge-kit/photos.",
)
@click.option(
    "--mirror",
    help="URL of a Debian archive, without its security updates. By default what this machine "
    "itself uses, with them.",
)
@click.option("--cache", type=_PATH, help="Directory that keeps downloads for the next build.")
@signals_interrupt()
def build(
    board: str,
    bundle: Path,
    config: Path,
    out: Path,
    photos: Path | None,
    mirror: str | None,
    cache: Path | None,
) -> None:
    """Build an image of Debian 12 for a board, from packages.

    Beside the image come its block map, its SHA-256 and the list of all that is in it. The same
    packages, bundle and configuration give the same image; SOURCE_DATE_EPOCH sets its time.
    """
    order = Order(
        board=load_board(board),
        bundle=Bundle.open(bundle),
        settings=read_settings(config),
        photos=photos,
        out=out.resolve(),
        mirrors=Mirrors(mirror) if mirror else host_mirrors(),
        cache=(cache or default_cache()).resolve(),
        epoch=_epoch(),
    )
    told = build_image(order, write_message)
    click.echo(f"{told['sha256']}  {told['image']}")


def default_cache() -> Path:
    """Return where downloads are kept."""
    folder = cache_folder()
    if folder is None:
        raise UsageError("this user has no home for downloads", "name a folder with --cache")
    return folder / "image"


def _epoch() -> int | None:
    text = os.environ.get("SOURCE_DATE_EPOCH")
    if text is None:
        return None
    if not text.isdigit():
        raise UsageError(f"SOURCE_DATE_EPOCH={text!r} is not a Unix time")
    return int(text)
