"""``edge-kit demo``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from edge_kit.errors import EdgeKitError
from edge_kit.host.signals import signals_interrupt
from edge_kit.terminal.progress import ProgressBars

__all__ = ["demo"]

ASSETS = Path(__file__).parents[1] / "demo" / "assets"
_SHOWN = 24
_PATH = click.Path(path_type=Path)


@click.command(
    epilog="\b\nExamples:\n"
    "  edge-kit demo\n"
    "  edge-kit demo --limit 40 --json\n"
    "  edge-kit demo --bundle my.ekb --photos my-photos/test"
)
@click.option("--bundle", type=_PATH, help="Another bundle than the one that comes along.")
@click.option("--photos", type=_PATH, help="A folder for each class, with photos.")
@click.option("--fps", type=click.FloatRange(0.1, 1000), default=10.0, show_default=True,
              help="Photos a second.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), help="At most so many photos, classes mixed.")
@click.option("--engine", type=click.Choice(["auto", "onnx", "tflite"]), default="auto",
              show_default=True, help="Engine of the device.")  # fmt: skip
@click.option("--threshold", type=float, help="Another T than the bundle's: 1 never sends.")
@click.option("--report", type=_PATH, default=Path("demo-report/index.html"), show_default=True,
              help="Where to write the page.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@signals_interrupt()
def demo(
    bundle: Path | None, photos: Path | None, fps: float, limit: int | None, engine: str,
    threshold: float | None, report: Path, as_json: bool,
) -> None:  # fmt: skip
    """Show a device, a broker and a worker at work.

    The device classifies photos as if a camera saw them, and sends features of those that it is not
    sure of; the worker finishes these. Everything runs on this machine, and ends with this command.
    """
    # Here, so that `edge-kit --help` stays quick.
    from edge_kit.demo import DemoConfig, run_demo
    from edge_kit.demo.page import page
    from edge_kit.pages.page import check_installed
    from edge_kit.pixels.jpeg import thumbnail
    from edge_kit.sources.photo import read_photo

    check_installed("edge-kit demo", "demo")
    bundle, photos = bundle or ASSETS / "clothing.ekb", photos or ASSETS / "photos"
    config = DemoConfig(bundle, photos, fps, limit, engine, threshold)
    with ProgressBars(named=True) as progress:
        figures = run_demo(config, progress.step)
    least_confident = sorted(figures.answers, key=lambda a: -a.entropy)[:_SHOWN]
    html = page(
        figures, {a.name: thumbnail(read_photo(config.photos / a.name)) for a in least_confident}
    )
    try:
        report.parent.mkdir(parents=True, exist_ok=True)
        report.write_text(html, encoding="utf-8")
    except OSError as error:
        raise EdgeKitError(f"cannot write {report}: {error.strerror or error}") from None
    result = figures.to_json()
    if as_json:
        click.echo(json.dumps(result))
    else:
        click.echo(_table(result))
        click.echo(f"\nReport: {report}")


def _table(f: Mapping[str, Any]) -> str:
    accuracy, ms = f["accuracy"], f["latency_ms"]
    times = "{:.1f} ms, {:.1f} ms"
    rows = [
        ("photos", f"{f['photos']}"),
        ("engine, threshold", f"{f['engine']}, {f['threshold']:.3g}"),
        ("answered on the device", f"{f['device_share']:.1%}"),
        ("right: device alone", f"{accuracy['device']:.1%}"),
        ("right: cloud half alone", f"{accuracy['cloud']:.1%}"),
        ("right: both, as they ran", f"{accuracy['hybrid']:.1%}"),
        ("bytes a message", _text("{:,.0f}", f["bytes_per_offloaded"])),
        ("bytes as JPEG, quality 75", _text("{:,.0f}", f["jpeg_bytes"])),
        ("device, p50 and p95", _text(times, ms["device_p50"], ms["device_p95"])),
        ("round trip, p50 and p95", _text(times, ms["roundtrip_p50"], ms["roundtrip_p95"])),
        ("lost, duplicates", f"{f['lost']}, {f['duplicates']}"),
    ]
    return "\n".join(f"{name:<28}{value}" for name, value in rows)


def _text(form: str, *values: float | None) -> str:
    return "none" if None in values else form.format(*values)
