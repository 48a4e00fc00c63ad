"""The export: from a classifier and photos to a bundle, as stages that can be resumed.

photos -> load -> trace -> cut -> features -> train -> engines -> calibrate -> gates -> bundle
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import Bundle
from edge_kit.bundle.manifest import Cut
from edge_kit.pixels.jpeg import QUALITY
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.tensors import TensorSpec
from exporters.config import ExportConfig
from exporters.data.bundle_photos import encode_reference
from exporters.data.photos import PhotoSet, check_photos, find_photos, load_pixels, spread, without
from exporters.engines.exported import Exported
from exporters.graph.plan import Classifier, SplitPlan, check_classes, load_classifier, make_plan
from exporters.judge.gates import require
from exporters.judge.outcome import Outcome, measure
from exporters.judge.thresholds import fit_exit
from exporters.judge.verify import verify
from exporters.progress import Progress, SilentProgress
from exporters.report.findings import Findings
from exporters.report.report import ExportReport, render
from exporters.stages.building import EngineFiles, build_engines, feature_spec
from exporters.stages.learning import cache_features, learn_halves, learn_tail, training_config
from exporters.stages.stage import Stage, Workspace
from exporters.writer import check_target, write_bundle

__all__ = ["ExportResult", "HybridAnswers", "export"]

SELFTEST_PHOTOS = 4
TUNING_BUDGET = 0.5  # of a backbone, what at most stays as pretrained
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
        rule = self.bundle.manifest.exit
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
        UsageError: A name or value that makes no sense.
        ExportError: The model or the photos cannot be exported.
        GateError: A figure misses its budget; the report in the work folder shows all of them.
    """
    progress = progress or SilentProgress()
    check_target(config.out)
    work = Workspace(config.work, progress)
    photos, found = _photos(config, work, progress)
    classifier, tuned = _source(config, photos, work, progress)
    plan = _plan(config, classifier, progress)
    check_classes(plan.traced, photos.classes)
    cache, features = cache_features("features", config, plan, photos, work, progress)
    training = training_config(config, plan)
    classes = len(photos.classes)
    halves, trained = learn_halves(
        plan, cache, classes, training, work, progress, [*tuned, features]
    )
    pixels = _pixels(plan, photos, work, progress, found)
    files = build_engines(
        config, plan, halves, pixels.arrays["validation"], work, trained, pixels.stage
    )
    spec = feature_spec(plan, training.channels, halves.end.feature_scale)
    calibration = _outcome("validation", files, pixels, photos, spec, work, progress)
    _warn_of_strangers(calibration, classes, progress)
    fitted = fit_exit(
        calibration.device,
        calibration.cloud,
        calibration.labels,
        calibration.message_bytes,
        budget=config.accuracy_budget,
        max_share=config.max_device_share,
    )
    test = _outcome("test", files, pixels, photos, spec, work, progress)
    progress.say("gates")
    gates = verify(plan, halves, files, pixels.arrays["validation"], calibration.labels, config)
    found_out = Findings(config, plan, photos, fitted, calibration, test, gates, files)
    page = _report(found_out, pixels, work)
    progress.say(f"report: {page}")
    require(gates)
    bundle = _write(found_out, spec, pixels, page)
    progress.say(f"bundle: {bundle.root}")
    return ExportResult(
        bundle, bundle.root / REPORT, bundle.manifest.figures, files.primary, files.tail
    )


@dataclass(frozen=True)
class Pixels:
    """Decoded splits, memory maps of uint8 (N, h, w, 3), JPEG sizes, the stage that made them."""

    arrays: Mapping[str, NDArray[np.uint8]]
    jpeg_bytes: Mapping[str, NDArray[np.int64]]
    stage: Stage


def _photos(config: ExportConfig, work: Workspace, progress: Progress) -> tuple[PhotoSet, Stage]:
    found = find_photos(config.data)

    def make(folder: Path) -> None:
        checked = check_photos(found, lambda d, t: progress.step("photos", d, t))
        (folder / "unreadable.json").write_text(json.dumps(checked.unreadable), encoding="utf-8")

    stage = work.run("photos", {"found": found.fingerprint()}, make)
    unreadable = json.loads((stage.folder / "unreadable.json").read_text(encoding="utf-8"))
    if unreadable:
        progress.say(
            f"skipped {len(unreadable)} photos that cannot be read, the first is {unreadable[0]}"
        )
    return without(found, unreadable), stage


def _source(
    config: ExportConfig, photos: PhotoSet, work: Workspace, progress: Progress
) -> tuple[Classifier, list[Stage]]:
    """Load the user's classifier, or make one by fine-tuning the end of a backbone."""
    progress.say("load")
    classifier = load_classifier(config, len(photos.classes))
    if classifier.fresh is None:
        return classifier, []
    plan = make_plan(config, classifier, config.tune_from, min(config.budget, TUNING_BUDGET))
    progress.say(f"fine-tune what follows {plan.cut.name}")
    cache, before = cache_features("tuning", config, plan, photos, work, progress)
    stage = learn_tail(plan, cache, training_config(config, plan), work, progress, before)
    return replace(classifier, fresh=None, tuned=True), [stage]


def _plan(config: ExportConfig, classifier: Classifier, progress: Progress) -> SplitPlan:
    progress.say("trace, cut")
    plan = make_plan(config, classifier, config.cut, config.budget)
    shape = " x ".join(str(s) for s in plan.cut.shape)
    progress.say(f"cut after {plan.cut.name}: {shape}, {plan.cut.macs_share:.0%} of the model")
    return plan


def _pixels(
    plan: SplitPlan, photos: PhotoSet, work: Workspace, progress: Progress, found: Stage
) -> Pixels:
    """Decode the calibration and the test split once."""
    preprocessor = Preprocessor(plan.classifier.rule)

    def make(folder: Path) -> None:
        for split in ("validation", "test"):
            chosen = photos.splits[split]
            pixels, jpeg_bytes = load_pixels(
                photos, chosen, preprocessor, lambda d, t: progress.step("pixels", d, t)
            )
            np.save(folder / f"{split}.npy", pixels)
            np.save(folder / f"{split}-jpeg.npy", jpeg_bytes)

    inputs = {"rule": plan.classifier.rule.to_json(), "jpeg_quality": QUALITY}
    folder = (stage := work.run("pixels", inputs, make, after=[found])).folder
    arrays = {s: np.load(folder / f"{s}.npy", mmap_mode="r") for s in ("validation", "test")}
    sizes = {s: np.load(folder / f"{s}-jpeg.npy") for s in ("validation", "test")}
    return Pixels(arrays, sizes, stage)


def _outcome(
    split: str,
    files: EngineFiles,
    pixels: Pixels,
    photos: PhotoSet,
    spec: TensorSpec,
    work: Workspace,
    progress: Progress,
) -> Outcome:
    def make(folder: Path) -> None:
        measured = measure(
            files.primary,
            files.tail,
            files.full,
            pixels.arrays[split],
            photos.labels(split),
            pixels.jpeg_bytes[split],
            spec,
            lambda d, t: progress.step(split, d, t),
        )
        measured.save(folder / "outcome.npz")

    stage = work.run(f"outcome-{split}", {}, make, after=[*files.stages, pixels.stage])
    return Outcome.load(stage.folder / "outcome.npz")


def _warn_of_strangers(calibration: Outcome, classes: int, progress: Progress) -> None:
    """Tell when the whole model hardly knows the photos: nothing behind it can be better."""
    right = calibration.share(calibration.full.argmax(1)).value
    if right < min(0.5, 2 / classes):
        progress.say(
            f"warning: the whole model is right on only {right:.0%} of the calibration photos; "
            "check that the class folders sort in its order, and --mean, --std and --resize"
        )


def _report(found: Findings, pixels: Pixels, work: Workspace) -> Path:
    primary = found.files.primary.entry
    page = render(
        ExportReport(
            title=found.config.title,
            classes=found.photos.classes,
            rule=found.fitted.rule,
            curve=found.fitted.curve,
            calibration_photos=found.fitted.samples,
            test=found.test,
            pixels=pixels.arrays["test"],
            names=[p.name for p in found.photos.splits["test"]],
            engine=f"{primary.engine} for {primary.arch}",
            files=found.files.shipped,
            gates=found.gates,
            made=found.made(),
        )
    )
    path = work.root / REPORT
    path.write_text(page, encoding="utf-8")
    return path


def _write(found: Findings, spec: TensorSpec, pixels: Pixels, page: Path) -> Bundle:
    cut = found.plan.cut
    calibration, rule = pixels.arrays["validation"], found.plan.classifier.rule
    return write_bundle(
        found.config.out,
        name=found.config.title,
        classes=found.photos.classes,
        preprocessing=rule,
        cuts=[Cut(cut.name, spec, cut.macs_share)],
        files=found.files.shipped,
        exit_rule=found.fitted.rule,
        curve=found.fitted.curve,
        selftest=np.asarray(calibration[spread(len(calibration), SELFTEST_PHOTOS)]),
        reference=encode_reference(found.photos, rule, found.config.reference_photos),
        extra={REPORT: page},
        figures=found.figures(),
    )
