"""``edge-kit bundle``: show, verify and pack."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from edge_kit.bundle import Bundle, pack
from edge_kit.bundle.labelled_photos import read_reference
from edge_kit.bundle.split import EngineFile, spoken

__all__ = ["bundle"]

_PATH = click.Path(path_type=Path)


@click.group()
def bundle() -> None:
    """Show, verify or pack a bundle."""


@bundle.command(epilog="\b\nExample:\n  edge-kit bundle show model.ekb")
@click.argument("path", type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest.")
def show(path: Path, as_json: bool) -> None:
    """Say what a bundle holds."""
    opened = Bundle.open(path)
    manifest = opened.manifest
    if as_json:
        click.echo(json.dumps(manifest.to_json(), indent=1))
        return
    size = manifest.preprocessing
    click.echo(f"{manifest.name}, model {manifest.model_hash[:16]}")
    click.echo(f"{len(manifest.classes)} classes: {', '.join(manifest.classes)}")
    click.echo(f"input {size.width} x {size.height}, {size.resize}")
    for index, split in enumerate(manifest.splits):
        shape = " x ".join(str(d) for d in split.features.shape)
        click.echo(
            f"split {index} {split.name}: {shape} {split.features.dtype}, "
            f"{split.macs_share:.0%} of the work before it, "
            f"exit at normalized entropy <= {split.exit.threshold:g}"
        )
        click.echo(f"  costs: {spoken(split.costs) or 'not measured'}")
        _list(split.engines, "  ")
    _list(manifest.full)
    click.echo(f"tuning: {opened.tuning.sentence()}")
    labelled = read_reference(opened)
    if labelled is not None:
        click.echo(f"reference set: {labelled.sentence()}, set {labelled.sha256[:16]}")


def _list(files: Sequence[EngineFile], indent: str = "") -> None:
    for file in files:
        size = f"{file.size:>10,} B"
        click.echo(f"{indent}{file.role:4} {file.engine:6} {file.arch:8} {size}  {file.path}")


@bundle.command(epilog="\b\nExample:\n  edge-kit bundle verify model.ekb")
@click.argument("path", type=_PATH)
def verify(path: Path) -> None:
    """Check every hash, and that this board has an end model in it."""
    opened = Bundle.open(path)
    fit = ", ".join(sorted({f.engine for f in opened.end_files()}))
    click.echo(f"{path} is valid: {opened.manifest.name}, runs here with {fit}")


@bundle.command("pack", epilog="\b\nExample:\n  edge-kit bundle pack model/ model.ekb")
@click.argument("directory", type=_PATH)
@click.argument("out", type=_PATH)
def pack_command(directory: Path, out: Path) -> None:
    """Write a bundle's directory as one file."""
    pack(directory, out)
    click.echo(f"{out}: {out.stat().st_size:,} bytes")
