"""Refit a bundle's exit rule on a board, with the board's own engine and new photos. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import Bundle
from edge_kit.bundle.tuning import write_tuning
from edge_kit.engines.end import EndModel
from edge_kit.engines.engine import Engine
from edge_kit.engines.select import open_end_model, open_tail
from edge_kit.errors import BundleError, ExportError, SourceError
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.labelled import LabelledPhoto, list_photos
from edge_kit.sources.photo import read_photo
from edge_kit.tensors import to_layout
from exporters.judge.outcome import message_size
from exporters.judge.thresholds import FittedExit, fit_exit

__all__ = ["Recalibration", "recalibrate"]

MIN_PHOTOS = 20
Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Recalibration:
    """What a refit changed.

    Attributes:
        fitted: The new rule and curve.
        photos: How many photos it was fitted on.
        skipped: How many could not be read.
        engine: Which engine answered.
        old_threshold: T before.
        old_temperature: Temperature before.
    """

    fitted: FittedExit
    photos: int
    skipped: int
    engine: str
    old_threshold: float
    old_temperature: float

    def to_json(self) -> dict[str, Any]:
        """Return the form that ``edge-kit calibrate --json`` prints."""
        fitted = self.fitted
        return {
            "photos": self.photos,
            "skipped": self.skipped,
            "engine": self.engine,
            "threshold": {"old": self.old_threshold, "new": fitted.rule.threshold},
            "temperature": {"old": self.old_temperature, "new": fitted.rule.temperature},
            "device_share": fitted.chosen.device_share,
            "accuracy": {
                "device": fitted.device_accuracy,
                "cloud": fitted.cloud_accuracy,
                "hybrid": fitted.chosen.accuracy,
            },
        }


def recalibrate(
    root: Path,
    data: Path,
    *,
    split: str | None = None,
    engine: str = "auto",
    budget: float = 0.005,
    max_share: float = 1.0,
    tick: Tick = lambda done, total: None,
) -> Recalibration:
    """Fit temperature and threshold anew and write them to ``tuning.json``.

    The manifest stays as it is, and workers need nothing new.

    Args:
        root: A bundle directory that holds its cloud half.
        data: A folder per class, named as in the bundle; photos that no training saw.
        split: Name of the split to calibrate, which the tuning then names; None for the one that
            it names already, else the first.
        engine: ``auto``, ``onnx`` or ``tflite``.
        budget: What hybrid accuracy may lose against cloud-only.
        max_share: Most that the device may answer itself, 0 to 1.
        tick: Told photos done and photos in all.

    Raises:
        BundleError: Not the directory of a bundle, no such split, or the tuning cannot be written.
        ExportError: An unknown class folder, or too few photos.
        EngineError: No engine runs the end model or the cloud half here.
    """
    if root.is_file():
        raise BundleError(
            f"{root} is a packed bundle, whose content is fixed",
            "unpack it into a directory (it is a zip file) and calibrate that",
        )
    bundle = Bundle.open(root, split=split)
    photos = _labelled(data, bundle.manifest.classes)
    end, tail = open_end_model(bundle, engine), open_tail(bundle)
    try:
        answers, skipped = _answer(bundle, end, tail, photos, tick)
        fitted = fit_exit(*answers, budget=budget, max_share=max_share)
        name = f"{end.file.engine} ({end.file.path})"
    finally:
        end.close()
        tail.close()
    old, rule = bundle.rule, fitted.rule
    tuning = replace(
        bundle.tuning,
        split=bundle.split.name,
        threshold=rule.threshold,
        temperature=rule.temperature,
        curve=fitted.curve,
    )
    write_tuning(bundle.root, tuning)
    count = len(answers[2])
    return Recalibration(fitted, count, skipped, name, old.threshold, old.temperature)


def _labelled(data: Path, classes: tuple[str, ...]) -> list[LabelledPhoto]:
    try:
        photos = list_photos(data, classes)
    except SourceError as error:
        raise ExportError(error.what, error.hint) from None
    if len(photos) < MIN_PHOTOS:
        raise ExportError(
            f"{data} has {len(photos)} photos, too few to fit a threshold on",
            f"give at least {MIN_PHOTOS}, one folder per class",
        )
    return photos


def _answer(
    bundle: Bundle, end: EndModel, tail: Engine, photos: list[LabelledPhoto], tick: Tick
) -> tuple[tuple[NDArray[Any], NDArray[Any], NDArray[np.int64], NDArray[Any]], int]:
    """Return device logits, cloud logits, labels and message sizes, and the unreadable count."""
    preprocess = Preprocessor(bundle.manifest.preprocessing)
    spec = end.feature_spec
    wanted = tail.inputs["features"].layout
    device, cloud, labels, sizes = [], [], [], []
    skipped = 0
    for i, photo in enumerate(photos):
        tick(i + 1, len(photos))
        try:
            pixels = preprocess(read_photo(photo.path))
        except SourceError:
            skipped += 1
            continue
        answer = end.infer(pixels)
        features = answer.features[None]
        device.append(answer.logits)
        cloud.append(tail.run({"features": to_layout(features, spec.layout, wanted)})["logits"][0])
        labels.append(photo.label)
        sizes.append(message_size(features, spec)[0])
    if len(labels) < MIN_PHOTOS:
        raise ExportError(f"only {len(labels)} of {len(photos)} photos can be read")
    arrays = (np.stack(device), np.stack(cloud), np.array(labels, np.int64), np.array(sizes))
    return arrays, skipped
