"""Make what `edge-kit demo` plays: its bundle, and about 200 photos of the test split.

    python scripts/make_demo_assets.py ../shared/data/clothing-small.tar

DATA is `clothing-small`, a ten-class subset of https://github.com/alexeygrigorev/clothing-dataset
(CC0), as a tar file or a folder, with train, validation and test below it. What follows `--` goes
to `edge-kit export`, after this script's OPTIONS. The work directory keeps the export's stages, so
that a second run goes on where the first ended. Needs the extra `export`, and about 40 minutes on
two cores.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import click

from edge_kit.bundle import Bundle, pack

ASSETS = Path(__file__).parents[1] / "edge_kit" / "demo" / "assets"
LIMIT = 15_000_000
OPTIONS = (
    "--budget", "0.7",  # the first cut with 7 x 7 positions: small messages
    "--message-bytes", "660",  # JPEG quality 75 at 224 x 224 takes about 7,200
    "--tail-epochs", "6",
    "--epochs", "8",
    "--max-device-share", "0.75",  # a margin for photos unlike those that calibrate
    "--cloud-weights", "int8",  # the repository ships this bundle
    "--reference-photos", "70",  # as many as fit into LIMIT, seven of each class
)  # fmt: skip


@click.command(context_settings={"max_content_width": 100})
@click.argument("data", type=click.Path(exists=True, path_type=Path))
@click.argument("export_options", nargs=-1, type=click.UNPROCESSED)
@click.option("--photos", default=200, show_default=True, help="How many photos to take.")
@click.option(
    "--bundle",
    type=click.Path(exists=True, path_type=Path),
    help="Take this bundle instead of exporting one.",
)
@click.option(
    "--work",
    default=Path("work-export"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Where the export keeps its stages.",
)
@click.option(
    "--out", default=ASSETS, show_default=True, type=click.Path(path_type=Path), help="Target."
)
def main(
    data: Path,
    export_options: tuple[str, ...],
    photos: int,
    bundle: Path | None,
    work: Path,
    out: Path,
) -> None:
    """Write the demo's bundle and photos."""
    root = data_root(data, work)
    if bundle is None:
        bundle = work / "bundle"
        export(root, bundle, export_options)
    out.mkdir(parents=True, exist_ok=True)
    pack(bundle, out / "clothing.ekb")
    taken = copy_photos(root, out / "photos", photos, Bundle.open(bundle).manifest.classes)
    size = sum(p.stat().st_size for p in out.rglob("*") if p.is_file())
    click.echo(f"{taken} photos and the bundle in {out}: {size / 1e6:.1f} MB")
    if size > LIMIT:
        raise click.ClickException(f"that is more than {LIMIT / 1e6:.0f} MB")


def data_root(data: Path, work: Path) -> Path:
    """Return the folder that holds train, validation and test; unpack a tar file first."""
    if data.is_file():
        target = work / "data"
        if not target.exists():
            part = work / "data.part"
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(data) as archive:
                archive.extractall(part, filter="data")
            part.rename(target)
        data = target
    for candidate in (data, *(p for p in sorted(data.iterdir()) if p.is_dir())):
        if (candidate / "test").is_dir():
            return candidate
    raise click.ClickException(f"{data} has no folder 'test'")


def export(data: Path, out: Path, options: tuple[str, ...]) -> None:
    """Run the exporter as a user would."""
    command = [
        str(Path(sys.executable).with_name("edge-kit")), "export",
        "--backbone", "efficientnet-lite0", "--name", "clothing",
        "--data", str(data), "--out", str(out), *OPTIONS, *options,
    ]  # fmt: skip
    click.echo("$ " + " ".join(command), err=True)
    if code := subprocess.run(command, check=False).returncode:
        raise click.exceptions.Exit(code)


def copy_photos(data: Path, out: Path, count: int, classes: tuple[str, ...]) -> int:
    """Copy `count` test photos, each class by its share, chosen by a hash of the name."""
    groups = {name: sorted((data / "test" / name).glob("*.jpg"), key=_rank) for name in classes}
    total = sum(len(group) for group in groups.values())
    exact = {name: count * len(group) / total for name, group in groups.items()}
    quota = {name: int(share) for name, share in exact.items()}
    # Largest remainders get what rounding down left over.
    for name in sorted(exact, key=lambda n: quota[n] - exact[n])[: count - sum(quota.values())]:
        quota[name] += 1
    shutil.rmtree(out, ignore_errors=True)
    taken = 0
    for name, group in groups.items():
        (out / name).mkdir(parents=True)
        for photo in group[: quota[name]]:
            shutil.copyfile(photo, out / name / photo.name)
            taken += 1
    for extra in ("LICENSE", "README.md"):
        if (data / extra).exists():
            shutil.copyfile(data / extra, out / extra)
    return taken


def _rank(photo: Path) -> str:
    return hashlib.sha256(photo.name.encode()).hexdigest()


if __name__ == "__main__":
    main()
