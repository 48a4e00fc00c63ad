"""``edge-kit bench``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_kit.device.config import resolve
from edge_kit.errors import EdgeKitError, EngineError, UsageError
from edge_kit.host.signals import signals_interrupt
from edge_kit.terminal.command_line import write_message

if TYPE_CHECKING:
    from edge_kit.bench.measure.measurement import Configuration
    from edge_kit.bench.report.report import BenchReport
    from edge_kit.bundle import Bundle

__all__ = ["bench"]

_PATH = click.Path(path_type=Path)
_MOST_THREADS = 1024
# The broker and what proves to it who we are; named as in edge_kit.device.config.
_BROKER = ("broker", "password_file", "tls_ca", "tls_cert", "tls_key")


class _MeasureOrCompare(click.Command):
    """``bench compare …`` compares; ``bench`` followed by anything else measures."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Hand over to the other command where that is asked for."""
        if args[:1] == ["compare"]:
            return compare.make_context(f"{info_name} compare", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _read_threads(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Read ``1,2,4``."""
    if value is None:
        return None
    try:
        numbers = [int(n) for n in value.split(",")]
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,2,4") from None
    if not all(1 <= n <= _MOST_THREADS for n in numbers):
        raise click.BadParameter(f"an engine takes 1 to {_MOST_THREADS} threads, not {value}")
    return tuple(dict.fromkeys(numbers))


@click.command(
    cls=_MeasureOrCompare,
    epilog="\b\nExamples:\n"
    "  edge-kit bench model.ekb\n"
    "  edge-kit bench model.ekb --photos photos/test --profile --html bench.html\n"
    "  edge-kit bench model.ekb --engine tflite --threads 1,4 --json > pi4.json\n"
    "  edge-kit bench model.ekb --broker mqtt://server --markdown card.md\n"
    "  edge-kit bench compare pi4.json pi5.json\n"
    "\b\nWith --broker a worker has to listen there (cloud-kit worker). A password comes from\n"
    "--password-file or EDGE_KIT_PASSWORD. What the figures mean: docs/benchmark.md.",
)
@click.argument("bundle_path", metavar="BUNDLE", type=_PATH)
@click.option("--split", metavar="NAME", help="Split of the bundle; default: the tuned one.")
@click.option("--engine", "engines", type=click.Choice(["onnx", "tflite"]), multiple=True,
              help="Only this engine; repeatable. Default: all that the bundle has.")  # fmt: skip
@click.option("--threads", callback=_read_threads, metavar="N,N,…",
              help="Each is measured. Default: 1, 2 and 4, up to the cores.")  # fmt: skip
@click.option("--runs", type=click.IntRange(1, 1_000_000), default=200, show_default=True,
              help="Calls of the engine that count.")  # fmt: skip
@click.option("--warmup", type=click.IntRange(0, 1_000_000), default=10, show_default=True,
              help="Calls before them that do not.")  # fmt: skip
@click.option("--max-secs", type=click.FloatRange(0.001, 36_000), default=60.0, show_default=True,
              help="Most seconds of warm-up, of the calls and of the pipeline, each.")  # fmt: skip
@click.option("--whole", is_flag=True, help="Also the whole float model, for comparison.")
@click.option("--photos", type=_PATH,
              help="For top-1, a folder for each class. Default: the bundle's.")  # fmt: skip
@click.option("--limit", type=click.IntRange(1), help="At most so many photos, classes mixed.")
@click.option("--no-top1", is_flag=True, help="Classify no labelled photos; quicker.")
@click.option("--frames", type=click.IntRange(1, 1_000_000), default=100, show_default=True,
              help="Frames of the whole pipeline, and messages with --broker.")  # fmt: skip
@click.option("--profile", is_flag=True, help="Time of each operator, where the engine tells it.")
@click.option("--broker", metavar="URL", help="Also bytes and round trip, by this broker.")
@click.option("--fps", type=click.FloatRange(0.1, 1000), default=5.0, show_default=True,
              help="Messages a second with --broker.")  # fmt: skip
@click.option("--device-id", help="With --broker; default: bench- and the host's name.")
@click.option("--password-file", type=_PATH, help="Password of the broker's user.")
@click.option("--tls-ca", type=_PATH, help="PEM file of the authorities to trust.")
@click.option("--tls-cert", type=_PATH, help="PEM file of this client's certificate.")
@click.option("--tls-key", type=_PATH, help="PEM file of its private key.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--markdown", type=_PATH, metavar="FILE", help="Write a card for an issue.")
@click.option("--html", type=_PATH, metavar="FILE", help="Write a page with plots.")
@signals_interrupt()
def bench(bundle_path: Path, **flags: Any) -> None:
    """Measure how fast, how hot and how right this board runs a bundle.

    Every model of the bundle that suits this board is measured with every number of threads, each
    in a process of its own. A run that throttled, or that other programs disturbed, is marked.
    """
    # Here, so that `edge-kit bench --help` stays quick.
    from edge_kit.bench.report.card import card, table
    from edge_kit.bench.report.page import page
    from edge_kit.bundle import Bundle
    from edge_kit.pages.page import check_installed

    if flags["html"] is not None:
        check_installed("edge-kit bench --html")
    for file in filter(None, (flags["markdown"], flags["html"])):
        _check_writable(file)
    bundle = Bundle.open(bundle_path, split=flags["split"])
    report, ended_by = _measure(bundle, flags)
    # What took minutes comes out whatever happens afterwards, and first where it is sure to.
    click.echo(json.dumps(report.to_json()) if flags["as_json"] else table(report))
    for file, make in ((flags["markdown"], card), (flags["html"], page)):
        if file is not None:
            try:
                _write(file, make(report))
            except EdgeKitError as error:
                ended_by = ended_by or error
    if ended_by is not None:
        raise ended_by
    if report.fastest is None:
        reasons = "; ".join(dict.fromkeys(m.error for m in report.measurements))
        raise EngineError(f"nothing could be measured: {reasons}")


def _measure(
    bundle: Bundle, flags: Mapping[str, Any]
) -> tuple[BenchReport, EdgeKitError | KeyboardInterrupt | None]:
    """Measure, and return with the figures what ended it early: an interrupt, or the broker."""
    from edge_kit.bench.measure import roundtrip
    from edge_kit.bench.measure.task import Effort
    from edge_kit.bench.plan import BenchPlan, default_threads, run_plan

    device = flags["device_id"] or roundtrip.device_name()
    given = {name: flags[name] for name in _BROKER}
    asked = flags["broker"] is not None
    address = resolve(given, roundtrip.device_environment()).address if asked else None
    if address is not None:
        roundtrip.reach(address, f"edgekit-{device}")
    effort = Effort(
        runs=flags["runs"], warmup=flags["warmup"], max_secs=flags["max_secs"],
        frames=flags["frames"], photos=flags["photos"], limit=flags["limit"],
        profile=flags["profile"], top1=not flags["no_top1"],
    )  # fmt: skip
    threads = flags["threads"] or default_threads()
    plan = BenchPlan(flags["engines"], threads, flags["whole"], effort)

    def progress(index: int, total: int, which: Configuration) -> None:
        write_message(f"{index + 1} of {total}: {which.full_title}")

    try:
        report = run_plan(bundle, plan, progress)
    except KeyboardInterrupt:
        write_message("interrupted before anything was measured")
        raise
    if report.interrupted:
        said = f"interrupted after {len(report.measurements)} of {report.planned} configurations"
        write_message(said)
        return report, KeyboardInterrupt()
    best = report.fastest
    if address is None or best is None:
        return report, None
    try:
        write_message(f"{flags['frames']} messages to {address.url} and back")
        proofs = [(name, given[name]) for name in _BROKER[1:] if given[name] is not None]
        trip = roundtrip.measure_round_trip(
            bundle, best.configuration, effort, address.url, device, flags["fps"],
            [f"--{name.replace('_', '-')}={value}" for name, value in proofs],
        )  # fmt: skip
    except EdgeKitError as error:
        return report, error
    except OSError as error:  # such as no place for temporary files
        return report, EdgeKitError(f"the round trip cannot be measured: {error}")
    except KeyboardInterrupt as interrupt:
        write_message("interrupted before all messages were back")
        return report, interrupt
    return replace(report, round_trip=trip), None


@click.command(
    epilog="\b\nExample:\n  edge-kit bench compare pi4.json pi5.json\n"
    "\b\nFiles come from: edge-kit bench BUNDLE --json > FILE"
)
@click.argument("files", nargs=-1, required=True, type=_PATH)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def compare(files: tuple[Path, ...], as_json: bool) -> None:
    """Rank boards or versions by the median time of a call, and by top-1.

    Only the same work is ranked: the same model, engine, precision and number of threads, by runs
    that nothing throttled or disturbed; and top-1 on the same photos. The rest is shown with the
    reason.
    """
    from edge_kit.bench.report.compare import compare as rank
    from edge_kit.bench.report.ranking import ranking
    from edge_kit.bench.report.report import BenchReport

    # The name alone when that tells them apart.
    names = [file.stem for file in files]
    labels = names if len(set(names)) == len(names) else [str(file) for file in files]
    if len(set(labels)) != len(labels):
        raise UsageError("a file is given twice", "give each once")
    found = rank({label: BenchReport.read(f) for label, f in zip(labels, files, strict=True)})
    click.echo(json.dumps(found.to_json()) if as_json else ranking(found))
    if found.ranked and not found.speed_ranked:
        write_message("top-1 alone is ranked, no speed; the reasons stand above")
    if not found.ranked:
        raise UsageError(
            "nothing here can be ranked: no two files measured the same model, engine, precision "
            "and threads undisturbed, or asked the same photos",
            "measure again on a quiet, cool board with the same bundle and options",
        )


def _check_writable(file: Path) -> None:
    """Complain before minutes of measuring, not after."""
    what = ""
    if file.is_dir():
        what = "it is a directory"
    elif not file.parent.is_dir():
        what = f"there is no directory {file.parent}"
    elif not os.access(file if file.exists() else file.parent, os.W_OK):
        what = "this user may not write there, or the disk is read-only"
    if what:
        raise UsageError(f"cannot write {file}: {what}", "name another file")


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EdgeKitError(f"cannot write {file}: {error.strerror or error}") from None
    write_message(f"{file} is written")
