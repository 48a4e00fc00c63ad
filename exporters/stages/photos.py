"""The stages that read photos: which can be read, and their pixels as a device sees them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.pixels.jpeg import QUALITY
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.records import to_json
from exporters.data.decoded import DecodedPhotos, load_pixels
from exporters.data.photos import PhotoSet, check_photos, find_photos, without
from exporters.stages.workspace import Workspace

__all__ = ["decode_photos", "read_photos"]


def read_photos(folder: Path, work: Workspace) -> PhotoSet:
    """Return the photos below `folder` that can be read.

    Raises:
        ExportError: As `find_photos` and `check_photos` say.
    """
    found = find_photos(folder)

    def make(place: Path) -> None:
        checked = check_photos(found, work.tick("photos"))
        (place / "unreadable.json").write_text(json.dumps(checked.unreadable), encoding="utf-8")

    made = work.run("photos", {"found": found.fingerprint()}, make)
    unreadable = json.loads((made / "unreadable.json").read_text(encoding="utf-8"))
    if unreadable:
        work.progress.say(
            f"skipped {len(unreadable)} photos that cannot be read, the first is {unreadable[0]}"
        )
    return without(found, unreadable)


def decode_photos(
    photos: PhotoSet, rule: Preprocessing, work: Workspace
) -> dict[str, DecodedPhotos]:
    """Decode the validation and the test split once."""
    splits = ("validation", "test")

    def make(folder: Path) -> None:
        preprocessor = Preprocessor(rule)
        for split in splits:
            chosen = photos.splits[split]
            pixels, sizes = load_pixels(photos, chosen, preprocessor, work.tick("pixels"))
            np.save(folder / f"{split}.npy", pixels)
            np.save(folder / f"{split}-jpeg.npy", sizes)

    inputs = {"rule": to_json(rule), "jpeg_quality": QUALITY}
    folder = work.run("pixels", inputs, make, after=["photos"])
    return {
        split: DecodedPhotos(
            np.load(folder / f"{split}.npy", mmap_mode="r"),
            photos.labels(split),
            np.load(folder / f"{split}-jpeg.npy"),
        )
        for split in splits
    }
