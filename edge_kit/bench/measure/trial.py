"""Start the child that measures one configuration, and monitor the board while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edge_kit.bench.conditions.conditions import BoardMonitor
from edge_kit.bench.measure.measurement import Configuration, Measurement
from edge_kit.bundle import Bundle
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.load import PACKAGES, missing_extra
from edge_kit.errors import SourceError
from edge_kit.host.child_process import ChildError, ask_child, module_command
from edge_kit.records import from_json

__all__ = ["Effort", "measure_in_child"]

# Loading on the slowest board, with a cold card.
_START_S = 300.0
_SECONDS_A_PHOTO = 15.0
_MOST_PHOTOS = 10_000


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        runs: Calls that count.
        warmup: Calls before them.
        max_secs: Most seconds for each of warm-up, calls and pipeline.
        frames: Most frames of the pipeline.
        photos: A folder for each class; None for the bundle's own labelled photos.
        limit: Most photos for top-1; None for all.
        profile: Ask engines for the time of each operator.
        top1: Classify labelled photos, which takes a while on a slow board.
    """

    runs: int = 200
    warmup: int = 10
    max_secs: float = 60.0
    frames: int = 100
    photos: Path | None = None
    limit: int | None = None
    profile: bool = False
    top1: bool = True

    def timeout_s(self, bundle: Bundle) -> float:
        """Return when a child must have answered."""
        # Without a folder there are the bundle's own photos, fewer than it has files.
        most = len(bundle.manifest.files) if self.photos is None else _MOST_PHOTOS
        photos = min(most, self.limit or most) if self.top1 else 0
        return _START_S + 4 * self.max_secs + _SECONDS_A_PHOTO * photos

    def arguments(self) -> list[str]:
        """Return the child's options."""
        options = [
            f"--runs={self.runs}", f"--warmup={self.warmup}", f"--max-secs={self.max_secs}",
            f"--frames={self.frames}",
        ]  # fmt: skip
        if self.photos is not None:
            options.append(f"--photos={self.photos}")
        if self.limit is not None:
            options.append(f"--limit={self.limit}")
        if not self.top1:
            options.append("--no-top1")
        return [*options, "--profile"] if self.profile else options


def measure_in_child(
    bundle: Bundle,
    file: EngineFile,
    threads: int,
    effort: Effort,
    *,
    command: Callable[[], Sequence[str]] | None = None,
    monitor: Callable[[], BoardMonitor] = BoardMonitor,
) -> Measurement:
    """Measure a model file; what goes wrong with its engine becomes part of the answer.

    Args:
        bundle: Where it lies.
        file: Of the role ``end`` or ``full``.
        threads: Of the engine.
        effort: How much.
        command: Gives the child's command line; injected by tests.
        monitor: Makes the monitor of the board.

    Raises:
        SourceError: The photos cannot be used, whatever the configuration.
    """
    configuration = Configuration.of(file, threads)
    if missing := missing_extra(file.engine):
        return Measurement(configuration, error=str(missing))
    argv = command() if command else _command(bundle, file, threads, effort)
    board = monitor()
    with board:
        found = _run(argv, configuration, effort.timeout_s(bundle))
    conditions = board.conditions
    assert conditions is not None
    return replace(found, conditions=conditions.to_json())


def _command(bundle: Bundle, file: EngineFile, threads: int, effort: Effort) -> list[str]:
    what = [str(bundle.root), file.path, f"--split={bundle.split.name}", f"--threads={threads}"]
    return module_command("edge_kit.bench.measure.child", *what, *effort.arguments())


def _run(argv: Sequence[str], configuration: Configuration, timeout_s: float) -> Measurement:
    package = PACKAGES.get(configuration.engine, configuration.engine)
    try:
        return from_json(Measurement, ask_child(argv, package, timeout_s))
    except ChildError as error:
        if error.exit_code == SourceError.exit_code:
            raise SourceError(str(error)) from None
        return Measurement(configuration, error=str(error))
