"""The data set on disk, augmented views, and cached features."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import ExportError, SourceError
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.photo import read_photo
from exporters.data.augment import augment
from exporters.data.photos import SPLITS, check_photos, find_photos, load_pixels, open_reduced

onnx = pytest.importorskip("onnx")
from exporters.data.features import FeatureTask, compute_features  # noqa: E402

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


def test_augment_with_equal_seed_gives_equal_view(tmp_path):
    paint(tmp_path / "a.png", size=(60, 40))
    photo = open_reduced(tmp_path / "a.png", 64)
    once = augment(photo, 24, 20, random.Random("1"))
    again = augment(photo, 24, 20, random.Random("1"))
    other = augment(photo, 24, 20, random.Random("2"))
    assert once.shape == (20, 24, 3)
    assert once.dtype == np.uint8
    assert np.array_equal(once, again)
    assert not np.array_equal(once, other)


@pytest.mark.parametrize("size", [(1, 1), (300, 3), (2, 50)])
def test_augment_of_odd_sizes_keeps_view_size(size):
    photo = Image.new("RGB", size, (9, 99, 199))
    for seed in range(40):
        assert augment(photo, 16, 16, random.Random(seed)).shape == (16, 16, 3)


def write_trunk(path: Path) -> None:
    """Average 4 x 4 blocks."""
    node = onnx.helper.make_node(
        "AveragePool", ["image"], ["f"], kernel_shape=[4, 4], strides=[4, 4]
    )
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "trunk",
        [value("image", onnx.TensorProto.FLOAT, ["n", 3, 16, 16])],
        [value("f", onnx.TensorProto.FLOAT, ["n", 3, 4, 4])],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=8), path)


@pytest.fixture
def task(tmp_path):
    found = find_photos(split_tree(tmp_path / "data", 5))
    write_trunk(tmp_path / "trunk.onnx")
    photos = tuple(found.path(p) for p in found.splits["train"])
    rule = Preprocessing(16, 16)
    return FeatureTask(tmp_path / "trunk.onnx", photos, rule, (3, 4, 4), tmp_path / "f", 2, 7)


def test_plain_view_features_equal_numpy(task):
    plain, *views = compute_features(task)
    preprocessor = Preprocessor(task.rule)
    for row, path in zip(plain, task.photos, strict=True):
        blocks = preprocessor(read_photo(path)).astype(np.float32).reshape(4, 4, 4, 4, 3)
        assert np.allclose(row, blocks.mean((1, 3)).transpose(2, 0, 1), atol=0.1)
    assert len(views) == 2
    assert not np.array_equal(views[0], views[1])


def test_features_resumed_equal_uninterrupted_run(task):
    whole = [np.array(v) for v in compute_features(task)]
    done = np.load(task.progress(1), mmap_mode="r+")
    done[[2, 7]] = 0
    done.flush()
    broken = np.load(task.features(1), mmap_mode="r+")
    broken[[2, 7]] = 0
    broken.flush()
    ticks = []
    again = compute_features(task, tick=lambda d, t: ticks.append((d, t)))
    assert ticks == [(28, 30), (30, 30)]
    for a, b in zip(whole, again, strict=True):
        assert np.array_equal(a, b)


def test_features_of_two_processes_equal_one(task, tmp_path):
    alone = compute_features(task)
    shared = compute_features(replace(task, folder=tmp_path / "g"), processes=2)
    for a, b in zip(alone, shared, strict=True):
        assert np.array_equal(a, b)


def test_vanished_photo_is_named(task):
    task.photos[3].unlink()
    with pytest.raises(SourceError, match="no photo at"):
        compute_features(task)


def test_dead_feature_process_suggests_fewer_processes(task, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match="fewer --processes"):
        compute_features(replace(task, trunk=tmp_path / "broken.onnx"), processes=2)
