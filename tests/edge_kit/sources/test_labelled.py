"""Photos in a folder for each class: listing, picking and laying them out."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from edge_kit.errors import SourceError
from edge_kit.sources.labelled import lay_out, list_photos, pick
from tests.support.tiny import CLASSES, SIZE


def save(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (SIZE, SIZE)).save(path)


@pytest.fixture
def photos(tmp_path) -> Path:
    """Four photos a class."""
    for name in CLASSES:
        for i in range(4):
            save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_class_of_a_photo_is_its_folder(photos):
    listed = list_photos(photos, CLASSES)
    assert len(listed) == 12
    assert all(p.path.parent.name == CLASSES[p.label] for p in listed)


def test_unknown_class_folder_is_refused_with_the_known_classes(tmp_path):
    save(tmp_path / "violet/a.png")
    with pytest.raises(
        SourceError, match=r"violet/a\.png lies in no class folder.*red, green, blue"
    ):
        list_photos(tmp_path, CLASSES)


def test_photo_outside_a_class_folder_is_refused(tmp_path):
    save(tmp_path / "a.png")
    with pytest.raises(SourceError, match=r"a\.png lies in no class folder"):
        list_photos(tmp_path, CLASSES)


def test_pick_holds_every_class_and_is_repeatable(photos):
    listed = list_photos(photos, CLASSES)
    chosen = pick(listed, 6)
    assert chosen == pick(list(listed), 6)
    assert sorted(p.label for p in chosen) == [0, 0, 1, 1, 2, 2]
    assert sorted(pick(listed, None), key=str) == sorted(listed, key=str)
    assert pick(listed, None) != listed


def test_photos_are_laid_out_in_their_order(photos, tmp_path):
    camera = tmp_path / "camera"
    camera.mkdir()
    chosen = pick(list_photos(photos, CLASSES), None)
    named = lay_out(chosen, camera)
    assert [named[p.name] for p in sorted(camera.iterdir())] == chosen
    assert {n: (camera / n).resolve() for n in named} == {
        n: p.path.resolve() for n, p in named.items()
    }
