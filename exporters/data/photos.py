"""Photos on disk as a labelled data set: a folder per class, in three splits."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import ExportError, MissingExtraError, SourceError
from edge_kit.sources.photo import PHOTO_SUFFIXES, is_photo
from exporters.progress import Tick, ignore

__all__ = [
    "SPLITS",
    "Photo",
    "PhotoSet",
    "check_photos",
    "find_photos",
    "open_reduced",
    "without",
]

_LOG = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")
_ALIASES = {"val": "validation", "valid": "validation", "dev": "validation"}
SHARE = 0.15  # of each class, for validation and for test, where no subfolders state a split
UNREADABLE_LIMIT = 0.05


@dataclass(frozen=True)
class Photo:
    """One labelled photo.

    Attributes:
        name: Path relative to the data folder, with forward slashes.
        label: Index of its class.
    """

    name: str
    label: int


@dataclass(frozen=True)
class PhotoSet:
    """A data set.

    ``train`` is all that weights are fitted on. ``validation`` calibrates quantization,
    temperature and threshold, and neither trains nor selects weights. ``test`` is only reported.

    Attributes:
        root: The data folder.
        classes: Class names, sorted; a label is an index into them.
        splits: Photos by split, sorted by name.
        rule: How the split came about: ``subfolders``, or the sentence that states it.
        unreadable: Names of photos that were skipped.
    """

    root: Path
    classes: tuple[str, ...]
    splits: dict[str, tuple[Photo, ...]]
    rule: str
    unreadable: tuple[str, ...] = ()

    def path(self, photo: Photo) -> Path:
        """Return where a photo lies."""
        return self.root / photo.name

    def labels(self, split: str) -> NDArray[np.int64]:
        """Return the class indices of a split, (N,)."""
        return np.array([p.label for p in self.splits[split]], dtype=np.int64)

    def fingerprint(self, *only: str) -> str:
        """Return a hash that changes when a photo is added, removed, moved or rewritten.

        Args:
            only: Splits; all when left out.
        """
        digest = hashlib.sha256("\0".join(self.classes).encode())
        for split in only or SPLITS:
            for photo in self.splits[split]:
                stat = self.path(photo).stat()
                line = f"{split}\0{photo.name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"
                digest.update(line.encode())
        return digest.hexdigest()


def find_photos(root: Path) -> PhotoSet:
    """List the photos under `root` without opening any.

    Either ``root/train``, ``root/validation`` (or ``val``) and ``root/test`` hold a folder per
    class each, or `root` does. In the second case each class is split by the SHA-256 of its file
    names in ascending order: the first 15 % are test, the next 15 % validation (at least one
    photo each), the rest train. The same files always fall the same way.

    Raises:
        ExportError: No folder, fewer than two classes, a class without photos, a split without
            a class, or a class that only some splits know.
    """
    if not root.is_dir():
        raise ExportError(f"there is no folder of photos at {root}", "check the path after --data")
    named = {_ALIASES.get(d.name, d.name): d for d in _class_folders(root)}
    missing = [s for s in SPLITS if s not in named]
    if len(missing) == len(SPLITS):
        return _from_classes(root)
    if missing:
        present = [s for s in SPLITS if s in named]
        raise ExportError(
            f"{root} has {' and '.join(present)} but no {' and no '.join(missing)}",
            "give all three splits, or one folder per class without splits",
        )
    return _from_subfolders(root, {s: named[s] for s in SPLITS})


def _class_folders(folder: Path) -> list[Path]:
    """Return the folders of photos in `folder`, one a class, sorted by name."""
    return sorted(d for d in folder.iterdir() if d.is_dir() and not d.name.startswith("."))


def _photos_in(folder: Path) -> list[Path]:
    """Return the photos below a class's folder, sorted."""
    return sorted(f for f in folder.rglob("*") if is_photo(f))


def _classes(folder: Path) -> tuple[str, ...]:
    classes = tuple(d.name for d in _class_folders(folder))
    if len(classes) < 2:
        have = f"only {classes[0]!r}" if classes else "none"
        raise ExportError(
            f"a classifier needs at least two classes, {folder} has {have}",
            "make one folder of photos per class",
        )
    return classes


def _from_subfolders(root: Path, folders: dict[str, Path]) -> PhotoSet:
    classes = _classes(folders["train"])
    splits: dict[str, tuple[Photo, ...]] = {}
    for split, folder in folders.items():
        unknown = sorted(d.name for d in _class_folders(folder) if d.name not in classes)
        if unknown:
            raise ExportError(
                f"{folder} has a class folder {unknown[0]!r} that train does not have",
                f"train knows: {', '.join(classes)}",
            )
        photos: list[Photo] = []
        for label, name in enumerate(classes):
            files = _photos_in(folder / name)
            if not files:
                raise ExportError(
                    f"class {name!r} has no photos in {folder}",
                    f"every class needs some in every split ({', '.join(sorted(PHOTO_SUFFIXES))})",
                )
            photos += [Photo(f.relative_to(root).as_posix(), label) for f in files]
        splits[split] = tuple(photos)
    return PhotoSet(root, classes, splits, "subfolders")


def _from_classes(root: Path) -> PhotoSet:
    classes = _classes(root)
    splits: dict[str, list[Photo]] = {s: [] for s in SPLITS}
    for label, name in enumerate(classes):
        files = _photos_in(root / name)
        if len(files) < len(SPLITS):
            raise ExportError(
                f"class {name!r} has {len(files)} photos in {root / name}",
                "a class needs at least three: one each to train, calibrate and test",
            )
        names = [f.relative_to(root).as_posix() for f in files]
        ranked = sorted(names, key=lambda n: hashlib.sha256(n.encode()).digest())
        held = max(1, round(SHARE * len(ranked)))
        parts = {"test": ranked[:held], "validation": ranked[held : 2 * held]}
        parts["train"] = ranked[2 * held :]
        for split, part in parts.items():
            splits[split] += [Photo(n, label) for n in sorted(part)]
    rule = "70/15/15 within each class, by the SHA-256 of the file name"
    return PhotoSet(root, classes, {s: tuple(p) for s, p in splits.items()}, rule)


def check_photos(found: PhotoSet, tick: Tick = ignore) -> PhotoSet:
    """Decode every photo once and leave out those that cannot be read.

    Args:
        found: From `find_photos`.
        tick: Told photos done and photos in all.

    Raises:
        ExportError: More than 5 % are unreadable, or a class lost its last photo of a split.
    """
    photos = [photo for split in found.splits.values() for photo in split]
    total = len(photos)
    bad: list[str] = []
    for done, photo in enumerate(photos, start=1):
        try:
            open_reduced(found.path(photo), 64)
        except SourceError as error:
            _LOG.warning("skipped: %s", error)
            bad.append(photo.name)
        tick(done, total)
    if len(bad) > UNREADABLE_LIMIT * total:
        some = ", ".join(bad[:3]) + (" ..." if len(bad) > 3 else "")
        raise ExportError(
            f"{len(bad)} of {total} photos cannot be read: {some}",
            "repair or remove them; up to 5 % are skipped",
        )
    return without(found, bad)


def without(found: PhotoSet, unreadable: Iterable[str]) -> PhotoSet:
    """Return the set without some photos, checked again for empty classes."""
    bad = frozenset(unreadable)
    splits = {
        split: tuple(p for p in photos if p.name not in bad)
        for split, photos in found.splits.items()
    }
    for split, photos in splits.items():
        left = {p.label for p in photos}
        for label, name in enumerate(found.classes):
            if label not in left:
                raise ExportError(
                    f"no photo of class {name!r} can be read in {split}",
                    "repair them or add others",
                )
    return replace(found, splits=splits, unreadable=tuple(sorted(bad)))


def open_reduced(path: Path, at_least: int) -> Any:
    """Decode a photo, upright and RGB, at a reduced size where the format allows it.

    JPEG decodes at a half, a quarter or an eighth much faster; neither side falls below
    `at_least` pixels unless the photo is smaller. For training views only: what the device will
    see comes from `read_photo`.

    Returns:
        A `PIL.Image.Image`.

    Raises:
        SourceError: It cannot be read.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise MissingExtraError("Pillow", "photos", "reading photos") from None
    try:
        with Image.open(path) as image:
            image.draft("RGB", (at_least, at_least))
            return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # Pillow's decoders raise many kinds; all mean the same here
        raise SourceError(f"{path} cannot be read as a photo ({error})") from None
