"""The data set on disk: classes, splits, unreadable photos, pixels."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import ExportError
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.photo import read_photo
from exporters.data.decoded import load_pixels, spread
from exporters.data.photos import (
    SPLITS,
    check_photos,
    find_photos,
    open_reduced,
    without,
)

pytestmark = pytest.mark.export


def paint(path: Path, colour=(200, 30, 30), size=(40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(zlib.crc32(path.name.encode()))
    noise = rng.integers(0, 40, (size[1], size[0], 3))
    Image.fromarray((noise + np.array(colour) * 0.8).astype(np.uint8)).save(path)


def split_tree(root: Path, per_class: int = 3) -> Path:
    for split in SPLITS:
        for name in ("cat", "dog"):
            for i in range(per_class):
                paint(root / split / name / f"{i}.jpg")
    return root


def flat_tree(root: Path, per_class: int = 40) -> Path:
    for name in ("cat", "dog"):
        for i in range(per_class):
            paint(root / name / f"{i}.png", size=(8, 8))
    return root


def test_split_subfolders_become_splits(tmp_path):
    found = find_photos(split_tree(tmp_path))
    assert found.classes == ("cat", "dog")
    assert [len(found.splits[s]) for s in SPLITS] == [6, 6, 6]
    assert found.labels("test").tolist() == [0, 0, 0, 1, 1, 1]
    assert found.splits["validation"][0].name == "validation/cat/0.jpg"


def test_val_folder_is_validation_split(tmp_path):
    split_tree(tmp_path)
    (tmp_path / "validation").rename(tmp_path / "val")
    assert len(find_photos(tmp_path).splits["validation"]) == 6


def test_hashed_split_is_disjoint_stable_and_70_15_15(tmp_path):
    root = flat_tree(tmp_path)
    first, second = find_photos(root), find_photos(root)
    assert first == second
    sizes = [len(first.splits[s]) for s in SPLITS]
    assert sizes == [56, 12, 12]
    names = {p.name for s in SPLITS for p in first.splits[s]}
    assert len(names) == 80


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda r: (r / "test/bird").mkdir(), r"class folder 'bird' that train does not have"),
        (lambda r: [f.unlink() for f in (r / "validation/dog").iterdir()], "'dog' has no photos"),
        (lambda r: (r / "test").rename(r / "other"), "no test"),
    ],
)
def test_bad_folder_tree_says_why(tmp_path, spoil, said):
    split_tree(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ExportError, match=said):
        find_photos(tmp_path)


def test_too_few_classes_or_photos_are_refused(tmp_path):
    with pytest.raises(ExportError, match="no folder of photos"):
        find_photos(tmp_path / "missing")
    paint(tmp_path / "only" / "1.jpg")
    with pytest.raises(ExportError, match=r"at least two classes.*only 'only'"):
        find_photos(tmp_path)
    paint(tmp_path / "more" / "1.jpg")
    with pytest.raises(ExportError, match="has 1 photos"):
        find_photos(tmp_path)


def test_few_unreadable_photos_are_skipped_and_named(tmp_path, caplog):
    root = flat_tree(tmp_path)
    victim = find_photos(root).splits["train"][5]
    path = root / victim.name
    path.write_bytes(path.read_bytes()[:60])
    seen = []
    checked = check_photos(find_photos(root), lambda done, whole: seen.append((done, whole)))
    assert checked.unreadable == (victim.name,)
    assert victim not in checked.splits["train"]
    assert len(checked.splits["train"]) == 55
    assert victim.name in caplog.text
    assert seen[-1] == (80, 80)


def test_many_unreadable_photos_are_refused(tmp_path):
    root = flat_tree(tmp_path, 10)
    for i in (1, 2):
        (root / "cat" / f"{i}.png").write_bytes(b"no photo")
    with pytest.raises(ExportError, match=r"2 of 20 photos cannot be read: .*cat/[12]\.png"):
        check_photos(find_photos(root))


def test_class_without_readable_photo_is_refused(tmp_path):
    split_tree(tmp_path, 8)
    for f in (tmp_path / "test" / "dog").iterdir():
        if f.name != "0.jpg":
            f.unlink()
    (tmp_path / "test" / "dog" / "0.jpg").write_bytes(b"no photo")
    with pytest.raises(ExportError, match="no photo of class 'dog' can be read in test"):
        check_photos(find_photos(tmp_path))


def test_fingerprint_changes_with_content(tmp_path):
    root = flat_tree(tmp_path, 4)
    before = find_photos(root).fingerprint()
    assert before == find_photos(root).fingerprint()
    victim = find_photos(root).splits["test"][0]
    train = find_photos(root).fingerprint("train")
    paint(root / victim.name, size=(9, 9))
    assert before != find_photos(root).fingerprint()
    assert train == find_photos(root).fingerprint("train")


def test_pixels_equal_device_preprocessing(tmp_path):
    found = find_photos(split_tree(tmp_path))
    preprocessor = Preprocessor(Preprocessing(16, 16))
    chosen = found.splits["test"]
    pixels, jpeg_bytes = load_pixels(found, chosen, preprocessor)
    assert pixels.shape == (6, 16, 16, 3)
    assert (jpeg_bytes > 100).all()
    for row, photo in zip(pixels, chosen, strict=True):
        assert np.array_equal(row, preprocessor(read_photo(found.path(photo))))


def test_reduced_photo_is_upright(tmp_path):
    image = Image.new("RGB", (64, 32), (0, 0, 255))
    image.paste((255, 0, 0), (0, 0, 32, 32))
    exif = image.getexif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    image.save(tmp_path / "turned.jpg", exif=exif)
    upright = open_reduced(tmp_path / "turned.jpg", 8)
    assert upright.height > upright.width
    red, _, blue = upright.getpixel((upright.width // 2, 1))
    assert red > blue


@pytest.mark.parametrize(
    ("count", "most", "rows"),
    [
        (3, 5, [0, 1, 2]),
        (5, 5, [0, 1, 2, 3, 4]),
        (9, 3, [0, 4, 8]),
        (10, 1, [0]),
        (0, 4, []),
        (100, 4, [0, 33, 66, 99]),
    ],
)
def test_spread_takes_even_rows_from_first_to_last(count, most, rows):
    assert spread(count, most).tolist() == rows


def test_spread_of_sorted_classes_takes_each_about_equally():
    labels = np.repeat(np.arange(4), 25)[spread(100, 40)]
    assert np.bincount(labels).tolist() == [10, 10, 10, 10]


def test_without_drops_photos_and_remembers_their_names(tmp_path):
    found = find_photos(split_tree(tmp_path))
    left = without(found, ["train/cat/1.jpg", "test/dog/0.jpg"])
    assert [len(left.splits[s]) for s in SPLITS] == [5, 6, 5]
    assert left.unreadable == ("test/dog/0.jpg", "train/cat/1.jpg")
    assert "train/cat/1.jpg" not in [p.name for p in left.splits["train"]]


def test_hidden_files_and_other_types_are_no_photos(tmp_path):
    split_tree(tmp_path)
    paint(tmp_path / "train" / "cat" / ".hidden.jpg")
    (tmp_path / "train" / "cat" / "notes.txt").write_text("x")
    (tmp_path / "train" / ".cache").mkdir()
    assert len(find_photos(tmp_path).splits["train"]) == 6


def test_photos_in_subfolders_of_a_class_are_found(tmp_path):
    split_tree(tmp_path)
    paint(tmp_path / "train" / "cat" / "deeper" / "more" / "9.PNG")
    names = [p.name for p in find_photos(tmp_path).splits["train"]]
    assert "train/cat/deeper/more/9.PNG" in names


def test_hashed_split_of_three_photos_gives_one_each(tmp_path):
    found = find_photos(flat_tree(tmp_path, 3))
    assert {s: len(found.splits[s]) for s in SPLITS} == dict.fromkeys(SPLITS, 2)


def test_hashed_split_of_renamed_class_folder_may_move_photos_but_loses_none(tmp_path):
    root = flat_tree(tmp_path, 10)
    (root / "cat").rename(root / "tiger")
    found = find_photos(root)
    assert found.classes == ("dog", "tiger")
    assert sum(len(found.splits[s]) for s in SPLITS) == 20


def test_fingerprint_of_renamed_class_changes(tmp_path):
    root = flat_tree(tmp_path, 4)
    before = find_photos(root).fingerprint()
    (root / "cat").rename(root / "bat")
    assert find_photos(root).fingerprint() != before
