"""Which configurations to measure, and measuring them one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edge_kit import __version__
from edge_kit.bench.measure.measurement import Configuration, Measurement
from edge_kit.bench.measure.task import Effort
from edge_kit.bench.measure.trial import measure_in_child
from edge_kit.bench.report.report import BenchReport, Model
from edge_kit.bundle import Bundle
from edge_kit.bundle.labelled_photos import read_reference
from edge_kit.bundle.split import EngineFile
from edge_kit.errors import EngineError
from edge_kit.host.board import available_cores, read_board
from edge_kit.sources.labelled import list_photos

__all__ = ["BenchPlan", "Progress", "default_threads", "run_plan"]

Progress = Callable[[int, int, Configuration], None]
"""Told the number of a configuration, from 0, of how many, and which it is."""

Measure = Callable[[Bundle, EngineFile, int, Effort], Measurement]


def default_threads() -> tuple[int, ...]:
    """Return 1, 2 and 4, as far as this process has cores."""
    return tuple(n for n in (1, 2, 4) if n <= max(1, available_cores()))


@dataclass(frozen=True)
class BenchPlan:
    """What to measure.

    Attributes:
        engines: Only these; empty for all that the bundle has.
        threads: Each of these numbers.
        whole: Also the whole float model, which a board would run if it did not split.
        effort: How much.
    """

    engines: Sequence[str] = ()
    threads: Sequence[int] = field(default_factory=default_threads)
    whole: bool = False
    effort: Effort = field(default_factory=Effort)

    def files(self, bundle: Bundle) -> list[EngineFile]:
        """Return the model files to measure.

        Raises:
            BundleError: No end model suits this board.
            EngineError: None is for the engines asked for.
        """
        files = list(bundle.end_files())
        if self.whole:
            files += bundle.manifest.full
        chosen = [f for f in files if not self.engines or f.engine in self.engines]
        if not chosen:
            have = ", ".join(sorted({f.engine for f in files}))
            raise EngineError(
                f"{bundle.root} has no model for {' or '.join(self.engines)}", f"it has: {have}"
            )
        return chosen


def run_plan(
    bundle: Bundle,
    plan: BenchPlan,
    on_progress: Progress = lambda *_: None,
    *,
    measure: Measure = measure_in_child,
) -> BenchReport:
    """Measure every configuration, each in a process of its own.

    An engine that fails leaves its reason in the report, and the others are measured. An interrupt
    after the first ends it with those that are finished. Tests `measure` in another way.

    Raises:
        BundleError, EngineError: There is nothing to measure.
        SourceError: The photos cannot be used.
        KeyboardInterrupt: Nothing was measured yet.
    """
    began, manifest, effort = time.time(), bundle.manifest, plan.effort
    if effort.photos is not None and effort.top1:
        # A folder that is not a class should be reported now, not after minutes of measuring.
        list_photos(effort.photos, manifest.classes)
    elif effort.top1:
        read_reference(bundle)  # report a broken index now, too
    pairs = [(file, n) for file in plan.files(bundle) for n in plan.threads]
    found: list[Measurement] = []
    try:
        for index, (file, threads) in enumerate(pairs):
            on_progress(index, len(pairs), Configuration.of(file, threads))
            found.append(measure(bundle, file, threads, effort))
    except KeyboardInterrupt:
        if not found:
            raise
    return BenchReport(
        version=__version__,
        measured_at=round(began, 3),
        board=read_board().to_json(),
        model=Model(manifest.name, manifest.model_hash, bundle.rule.threshold),
        effort={key: getattr(effort, key) for key in ("runs", "warmup", "max_secs", "frames")},
        measurements=tuple(found),
        planned=len(pairs),
    )
