"""Photos of known class that come with a bundle: how right a board is, on the same set everywhere.

The index is documented in ``docs/bundle-format.md``. No training, calibration or tuning saw them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from edge_kit import records
from edge_kit.bundle.bundle import Bundle
from edge_kit.errors import BundleError

__all__ = ["INDEX", "ReferencePhoto", "ReferenceSet", "photo_set_digest", "read_reference"]

INDEX = "reference/photos.json"


@dataclass(frozen=True)
class ReferencePhoto:
    """A photo and its true class.

    Attributes:
        path: The file.
        label: Index into the bundle's classes.
        sha256: Hexadecimal digest of the file.
    """

    path: Path
    label: int
    sha256: str


@dataclass(frozen=True)
class ReferenceSet:
    """The labelled photos of a bundle.

    Attributes:
        photos: At least one.
        split: Of the data set that they are from, such as ``test``; empty where it is not told.
    """

    photos: tuple[ReferencePhoto, ...]
    split: str

    @property
    def sha256(self) -> str:
        """See `photo_set_digest`."""
        return photo_set_digest((p.sha256, p.label) for p in self.photos)

    def sentence(self) -> str:
        """Return what it is, for people."""
        count, split = len(self.photos), f" of the {self.split} split" if self.split else ""
        return f"{count} labelled photo{'s' if count > 1 else ''}{split}"


def photo_set_digest(photos: Iterable[tuple[str, int]]) -> str:
    """Return the name of a set of photos: equal for the same files with the same classes.

    Args:
        photos: SHA-256 of each file, and the index of its class; in any order.
    """
    lines = sorted(f"{digest} {label}\n" for digest, label in photos)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_reference(bundle: Bundle) -> ReferenceSet | None:
    """Return the labelled photos of an opened bundle; None when it has none.

    Raises:
        BundleError: The index cannot be read, or names what the bundle does not have.
    """
    if INDEX not in bundle.manifest.files:
        return None
    try:
        data = json.loads((bundle.root / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _invalid(f"{INDEX} of {bundle.root} cannot be read ({error})") from None
    index = records.from_json(_Index, data, f"{INDEX} of {bundle.root}", error=_invalid)
    if len({row.path for row in index.photos}) < len(index.photos):
        raise _invalid(f"{INDEX} of {bundle.root} lists a photo twice")
    return ReferenceSet(tuple(_photo(bundle, row) for row in index.photos), index.split)


@dataclass(frozen=True)
class _Row:
    path: str
    label: int


@dataclass(frozen=True)
class _Index:
    photos: tuple[_Row, ...]
    split: str = ""

    def __post_init__(self) -> None:
        if not self.photos:
            raise ValueError("it lists no photo")
        if not self.split.isprintable():
            raise ValueError(f"split {self.split!r:.40} is not a printable name")


def _photo(bundle: Bundle, row: _Row) -> ReferencePhoto:
    # What the manifest lists was hashed when the bundle was opened, and lies inside it.
    listed, classes = bundle.manifest.files.get(row.path), len(bundle.manifest.classes)
    if listed is None:
        raise _invalid(f"{INDEX} names {row.path}, which is not listed in the manifest")
    if not 0 <= row.label < classes:
        raise _invalid(f"label {row.label} in {INDEX} is out of range (0 to {classes - 1})")
    return ReferencePhoto(bundle.root / row.path, row.label, listed.sha256)


def _invalid(what: str) -> BundleError:
    return BundleError(what, "export the bundle again")
