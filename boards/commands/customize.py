"""``edge-kit image customize``."""

from __future__ import annotations

from pathlib import Path

import click

from boards.commands.build import default_cache
from boards.image.build import read_settings
from boards.image.customize import customize as customize_image
from edge_kit.bundle import Bundle
from edge_kit.host.signals import signals_interrupt
from edge_kit.terminal.command_line import write_message

__all__ = ["customize"]

_PATH = click.Path(path_type=Path)


@click.command(
    epilog="\b\nExample:\n"
    "  edge-kit image customize raspios.img.xz --bundle my.ekb --config device.toml \\\n"
    "      --out edge.img.xz"
)
@click.argument("image", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--bundle", required=True, type=_PATH, help="The bundle that it runs.")
@click.option("--config", required=True, type=_PATH, help="TOML file: network, keys, what to run.")
@click.option("--out", required=True, type=_PATH, help="The image to write, ….img or ….img.xz.")
@click.option(
    "--photos",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder to put into the image, at /var/lib/edge-kit/photos.",
)
@click.option("--cache", type=_PATH, help="Directory that keeps downloads for the next one.")
@signals_interrupt()
def customize(
    image: Path, bundle: Path, config: Path, out: Path, photos: Path | None, cache: Path | None
) -> None:
    """Put edge-kit into a stock 64-bit Raspberry Pi OS image; the stock image stays as it is.

    Only its boot partition changes. At the first start the board installs what was put there and
    starts once more; it needs no network for that. What it did it tells in edge-kit-setup.log on
    that partition. Write the image with `edge-kit image flash`: Raspberry Pi Imager's own settings
    would take the first start over.
    """
    digest = customize_image(
        image,
        Bundle.open(bundle),
        read_settings(config),
        out,
        cache or default_cache(),
        write_message,
        photos,
    )
    click.echo(f"{digest}  {out}")
