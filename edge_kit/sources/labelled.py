"""Photos whose class is known: a folder for each class."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_kit.errors import SourceError
from edge_kit.sources.folder import FolderSource

__all__ = ["LabelledPhoto", "lay_out", "list_photos", "pick"]


@dataclass(frozen=True)
class LabelledPhoto:
    """A photo and its true class, an index into those of the bundle."""

    path: Path
    label: int


def list_photos(folder: Path, classes: Sequence[str]) -> list[LabelledPhoto]:
    """Return the photos below `folder`, sorted; the folder that holds one names its class.

    Raises:
        SourceError: There is none, or a folder names no class of the bundle.
    """
    photos = []
    for path in FolderSource(folder).paths():
        name = path.parent.name
        if path.parent == folder or name not in classes:
            raise SourceError(
                f"{path} lies in no class folder of {folder}",
                f"put photos into folders named after its classes: {', '.join(classes)}",
            )
        photos.append(LabelledPhoto(path, classes.index(name)))
    return photos


def pick(photos: Sequence[LabelledPhoto], limit: int | None, seed: int = 0) -> list[LabelledPhoto]:
    """Return at most `limit` photos, classes in equal parts, mixed as a camera would see them.

    The same arguments give the same photos in the same order.
    """
    dice = random.Random(seed)
    groups: dict[int, list[LabelledPhoto]] = defaultdict(list)
    for photo in photos:
        groups[photo.label].append(photo)
    for group in groups.values():
        dice.shuffle(group)
    depth = max((len(g) for g in groups.values()), default=0)
    turns = [group[turn] for turn in range(depth) for group in groups.values() if turn < len(group)]
    chosen = turns[:limit]
    dice.shuffle(chosen)
    return chosen


def lay_out(photos: Sequence[LabelledPhoto], folder: Path) -> dict[str, LabelledPhoto]:
    """Link the photos into `folder` in their order, for a source that plays folders by name.

    Returns:
        The photo behind each name.
    """
    width = len(str(len(photos)))
    named = {f"{i:0{width}}{p.path.suffix.lower()}": p for i, p in enumerate(photos)}
    for name, photo in named.items():
        (folder / name).symlink_to(photo.path.resolve())
    return named
