"""Top-1 on photos whose class is known, through the very calls whose speed is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from edge_kit.bench.measure.latency import Latency, TimedEngine
from edge_kit.bench.measure.measurement import Measurement
from edge_kit.bench.measure.score import LabelledSet, Score
from edge_kit.bundle import Bundle, sha256_file
from edge_kit.bundle.labelled_photos import photo_set_digest, read_reference
from edge_kit.engines.end import ImageModel
from edge_kit.errors import MissingExtraError, SourceError
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.labelled import LabelledPhoto, list_photos, pick
from edge_kit.sources.photo import read_photo

__all__ = ["classify"]


def classify(
    found: Measurement,
    bundle: Bundle,
    model: ImageModel,
    engine: TimedEngine,
    photos: Path | None,
    limit: int | None,
) -> Measurement:
    """Add top-1 to a measurement: photos decoded, resized and classified as the device does it.

    Args:
        found: What was measured before.
        bundle: Whose classes they are.
        model: A loaded end model or whole model, which calls `engine`.
        engine: Takes the time.
        photos: A folder for each class; None for the bundle's own set, if it has one.
        limit: Most photos, classes in equal parts; None for all.

    Returns:
        `found` with the figures. Without a folder, a problem is noted in it instead.

    Raises:
        SourceError: Not one photo of the folder can be read.
        MissingExtraError: Reading the folder needs a package that is not installed.
        EngineError: The engine fails.
    """
    if photos is not None:
        chosen = pick(list_photos(photos, bundle.manifest.classes), limit)
        return _score(found, bundle, model, engine, chosen, "photos", "")
    try:
        reference = read_reference(bundle)
        if reference is None:
            return _without(found, "the bundle carries no labelled photos: give --photos for top-1")
        chosen = pick([LabelledPhoto(p.path, p.label) for p in reference.photos], limit)
        return _score(found, bundle, model, engine, chosen, "bundle", reference.split)
    except (MissingExtraError, SourceError) as error:
        # Nobody asked for photos; a board without Pillow still has its speed measured.
        return _without(found, f"no top-1: {error}")


def _without(found: Measurement, why: str) -> Measurement:
    return replace(found, skipped=(*found.skipped, why))


def _score(
    found: Measurement, bundle: Bundle, model: ImageModel, engine: TimedEngine,
    photos: Sequence[LabelledPhoto], source: str, split: str,
) -> Measurement:  # fmt: skip
    resize = Preprocessor(bundle.manifest.preprocessing)
    answers = []  # SHA-256 of the file, its class, the class that it got
    engine.take()
    for photo in photos:
        try:
            pixels, digest = resize(read_photo(photo.path)), sha256_file(photo.path)
        except (SourceError, OSError):
            continue
        answers.append((digest, photo.label, int(model.classify(pixels).argmax())))
    if not answers:
        raise SourceError("not one of the labelled photos can be read", "give others by --photos")
    if unread := len(photos) - len(answers):
        found = _without(found, f"{unread} labelled photos cannot be read")
    digests, labels, got = zip(*sorted(answers), strict=True)
    named = photo_set_digest(zip(digests, labels, strict=True))
    return replace(
        found,
        top1=Score.of(sum(a == b for a, b in zip(got, labels, strict=True)), len(got)),
        top1_inference=Latency.of(engine.take()),
        top1_set=LabelledSet(source, split, named, labels),
        top1_answers=got,
    )
