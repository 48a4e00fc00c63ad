"""Choose and encode the labelled photos that a bundle carries."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath

from edge_kit.bundle.labelled_photos import INDEX
from edge_kit.bundle.manifest import Preprocessing
from edge_kit.pixels.jpeg import QUALITY, small_jpeg
from edge_kit.sources.photo import read_photo
from exporters.data.photos import Photo, PhotoSet

__all__ = ["SPLIT", "choose_reference", "encode_reference"]

# Nothing is fitted, chosen or calibrated on it, so a board's top-1 on it is honest.
SPLIT = "test"
FOLDER = "reference/photos"
RULE = (
    "of each class the first by SHA-256 of the file name, classes in turn; no result was looked at"
)
_PLAIN = re.compile(r"[\w .+-]+")


def choose_reference(photos: Sequence[Photo], most: int) -> list[Photo]:
    """Return at most `most` photos, classes in equal parts as far as they reach, sorted.

    Names alone decide: the same photos are chosen whatever any model makes of them.

    Args:
        photos: Of one split.
        most: 0 chooses none.
    """
    groups: dict[int, list[tuple[str, Photo]]] = defaultdict(list)
    for photo in photos:
        rank = hashlib.sha256(PurePosixPath(photo.name).name.encode()).hexdigest()
        groups[photo.label].append((rank, photo))
    turns = [
        (turn, rank, photo.name, photo)
        for group in groups.values()
        for turn, (rank, photo) in enumerate(sorted(group, key=lambda r: (r[0], r[1].name)))
    ]
    chosen = [photo for *_key, photo in sorted(turns, key=lambda t: t[:3])[:most]]
    return sorted(chosen, key=lambda p: (p.label, p.name))


def encode_reference(photos: PhotoSet, rule: Preprocessing, most: int) -> dict[str, bytes]:
    """Return the files of a bundle's reference set by path: JPEGs and their index.

    Each is `edge_kit.pixels.jpeg.small_jpeg` of a photo: what a camera that sends pictures
    would send.

    Args:
        photos: The data set; its test split is taken from.
        rule: Size and resize rule of the model.
        most: Photos; 0 gives no files.

    Raises:
        SourceError: A photo can no longer be read.
    """
    files: dict[str, bytes] = {}
    rows = []
    for photo in choose_reference(photos.splits[SPLIT], most):
        folder = f"{FOLDER}/{_folder(photos.classes[photo.label], photo.label)}"
        path = f"{folder}/{sum(p.startswith(folder + '/') for p in files):03}.jpg"
        files[path] = small_jpeg(read_photo(photos.path(photo)), rule)
        rows.append({"path": path, "label": photo.label, "name": photo.name})
    if not rows:
        return {}
    encoding = f"JPEG quality {QUALITY}, {rule.width} x {rule.height}, antialiased"
    index = {"split": SPLIT, "rule": RULE, "encoding": encoding, "photos": rows}
    return {INDEX: (json.dumps(index, indent=1) + "\n").encode(), **files}


def _folder(name: str, label: int) -> str:
    """Return a folder that names the class, where its name makes a safe one."""
    return name if _PLAIN.fullmatch(name) and name.strip(". ") == name else f"class-{label}"
