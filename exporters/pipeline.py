"""The export: from a classifier and photos to a bundle, as stages that can be resumed.

photos -> load -> trace -> cut -> features -> train -> engines -> judge -> report -> write
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import Bundle
from exporters.config import ExportConfig
from exporters.data.bundle_photos import encode_reference
from exporters.data.decoded import spread
from exporters.engines.exported import Exported
from exporters.graph.plan import check_classes, load_classifier, make_plan
from exporters.judge.gates import require
from exporters.judge.outcome import Outcome
from exporters.judge.thresholds import fit_exit
from exporters.judge.verify import verify
from exporters.progress import Progress, SilentProgress
from exporters.report.findings import manifest_figures, measured_split, provenance
from exporters.report.report import ExportReport, render
from exporters.stages.answers import answer_photos
from exporters.stages.engines import build_engines
from exporters.stages.features import cache_features
from exporters.stages.lock import hold_lock
from exporters.stages.photos import decode_photos, read_photos
from exporters.stages.training import learn_halves, training_recipe, tune
from exporters.stages.workspace import Workspace
from exporters.writer import check_target, write_bundle

__all__ = ["ExportResult", "HybridAnswers", "export"]

SELFTEST_PHOTOS = 4
REPORT = "report.html"


@dataclass(frozen=True)
class HybridAnswers:
    """What device and cloud together say of a batch.

    Attributes:
        labels: Final class indices, (N,).
        exits: Which samples the device answered itself, (N,).
    """

    labels: NDArray[np.int64]
    exits: NDArray[np.bool_]


@dataclass(frozen=True)
class ExportResult:
    """A finished export; call it to classify pixels as the deployed hybrid would.

    Attributes:
        bundle: What was written.
        report: The HTML report inside it.
        figures: What was measured, as the manifest holds it.
        end: The int8 end model that calibrated.
        tail: The cloud half.
    """

    bundle: Bundle
    report: Path
    figures: Mapping[str, Any]
    end: Exported
    tail: Exported

    def __call__(self, pixels: NDArray[np.uint8]) -> HybridAnswers:
        """Classify preprocessed pixels, uint8 (N, height, width, 3)."""
        device = self.end(pixels)
        rule = self.bundle.split.exit
        exits = np.array([rule.decide(row).exits for row in device["logits"]], dtype=np.bool_)
        cloud = self.tail(device["features"])["logits"]
        labels = np.where(exits, device["logits"].argmax(1), cloud.argmax(1))
        return HybridAnswers(labels, exits)


def export(config: ExportConfig, progress: Progress | None = None) -> ExportResult:
    """Make a bundle.

    Features are computed in spawned processes, which import the calling script: call this under
    ``if __name__ == "__main__":``, or set ``processes`` to 1.

    Args:
        config: What to export, from what, into where.
        progress: Told what happens.

    Raises:
        UsageError: A name or value that cannot be used.
        ExportError: The model or the photos cannot be exported, or another export works in the
            same work folder.
        GateError: A figure misses its budget; the report in the work folder shows all of them.
    """
    check_target(config.output.folder)
    with hold_lock(config.output.work):
        return _export(config, Workspace(config.output.work, progress or SilentProgress()))


def _export(config: ExportConfig, work: Workspace) -> ExportResult:
    say, split = work.progress.say, config.split
    photos = read_photos(config.data.folder, work)
    say("load")
    classifier = load_classifier(config.model, len(photos.classes), config.training.seed)
    classifier = tune(classifier, photos, split, config.training, work)
    say("trace, cut")
    plan = make_plan(classifier, split.cut, split.budget, split.channels)
    say(f"cut after {plan.cut}")
    check_classes(plan.traced, photos.classes)
    features = cache_features("features", plan, photos, config.training, work)
    recipe = training_recipe(config.training, plan.cut, split.channels)
    halves = learn_halves(plan, features, len(photos.classes), recipe, work)
    decoded = decode_photos(photos, plan.rule, work)
    files = build_engines(plan, halves, decoded["validation"].pixels, config.quantization, work)
    calibration = answer_photos("validation", files, decoded["validation"], work)
    _warn_of_unknown_photos(calibration, len(photos.classes), work.progress)
    fitted = fit_exit(
        calibration.device,
        calibration.cloud,
        calibration.labels,
        calibration.message_bytes,
        budget=config.budgets.accuracy,
        max_share=config.budgets.max_device_share,
    )
    test = answer_photos("test", files, decoded["test"], work)
    say("gates")
    gates = verify(
        plan,
        halves,
        files,
        decoded["validation"],
        storage=config.quantization.cloud_weights,
        size_ratio=config.budgets.size_ratio,
    )
    report = work.root / REPORT
    page = ExportReport(
        title=config.title,
        classes=photos.classes,
        rule=fitted.rule,
        curve=fitted.curve,
        calibration_photos=fitted.samples,
        test=test,
        pixels=decoded["test"].pixels,
        engine=f"{files.primary.entry.engine} for {files.primary.entry.arch}",
        files=files.shipped,
        gates=gates,
        made=provenance(config, photos, plan),
    )
    report.write_text(render(page), encoding="utf-8")
    say(f"report: {report}")
    require(gates)
    pixels = decoded["validation"].pixels
    bundle = write_bundle(
        config.output.folder,
        name=config.title,
        classes=photos.classes,
        preprocessing=plan.rule,
        splits=[measured_split(plan, files, fitted, test)],
        files=files.shipped,
        selftest=np.asarray(pixels[spread(len(pixels), SELFTEST_PHOTOS)]),
        reference=encode_reference(photos, plan.rule, config.data.reference_photos),
        extra={REPORT: report},
        figures=manifest_figures(config, photos, fitted.rule, calibration, test, gates),
    )
    say(f"bundle: {bundle.root}")
    return ExportResult(
        bundle, bundle.root / REPORT, bundle.manifest.figures, files.primary, files.tail
    )


def _warn_of_unknown_photos(calibration: Outcome, classes: int, progress: Progress) -> None:
    """Warn when the unsplit model is mostly wrong: the halves cannot be better."""
    right = calibration.share(calibration.full.argmax(1)).value
    if right < min(0.5, 2 / classes):
        progress.say(
            f"warning: the whole model is right on only {right:.0%} of the calibration photos; "
            "check that the class folders sort in its order, and --mean, --std and --resize"
        )
