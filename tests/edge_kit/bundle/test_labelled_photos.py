"""The labelled photos of a bundle: which are chosen, what is written, what is read back."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_kit.bundle import Bundle, sha256_file
from edge_kit.bundle.labelled_photos import INDEX, photo_set_digest, read_reference
from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import BundleError
from exporters.data.bundle_photos import FOLDER, choose_reference, encode_reference
from exporters.data.photos import Photo, PhotoSet, find_photos
from tests.support.labelled import add_files as add
from tests.support.tiny import make_bundle

ASSETS = Path(__file__).parents[3] / "edge_kit/demo/assets"
RULE = Preprocessing(16, 16)


def photos(*counts: int) -> list[Photo]:
    return [
        Photo(f"test/{label}/{n}.jpg", label) for label, count in enumerate(counts)
        for n in range(count)
    ]  # fmt: skip


@pytest.fixture
def data(tmp_path) -> PhotoSet:
    root = tmp_path / "data"
    for number, split in enumerate(("train", "validation", "test")):
        for label, name in enumerate(("a b", "t-shirt")):
            (root / split / name).mkdir(parents=True)
            for n in range(5):
                pixels = np.full((40, 30, 3), 60 * number + 20 * label + n, np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{split}{n}.png")
    return find_photos(root)


def index(*rows: dict, **more: object) -> dict[str, bytes]:
    return {INDEX: json.dumps({"split": "test", "photos": rows} | more).encode()}


@pytest.mark.parametrize(
    ("counts", "most", "want"),
    [
        ((9, 9, 9), 6, [2, 2, 2]),
        ((9, 1, 9), 7, [3, 1, 3]),  # a small class gives all that it has
        ((2, 2), 100, [2, 2]),
        ((5, 5, 5, 5), 3, [1, 1, 1]),  # more classes than photos wanted
        ((5, 5), 0, []),
    ],
)
def test_choice_takes_classes_in_turn(counts, most, want):
    chosen = choose_reference(photos(*counts), most)
    assert sorted(np.unique([p.label for p in chosen], return_counts=True)[1].tolist()) == sorted(
        want
    )


def test_choice_depends_on_names_only():
    all_of_it = photos(30, 30)
    chosen = choose_reference(all_of_it, 4)
    assert choose_reference(all_of_it[::-1], 4) == chosen
    for label in (0, 1):
        names = [f"{n}.jpg" for n in range(30)]
        names.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())
        got = {Path(p.name).name for p in chosen if p.label == label}
        assert got == set(names[:2])


def test_reference_photos_are_of_the_test_split_at_model_size(data):
    files = encode_reference(data, RULE, 6)
    found = json.loads(files.pop(INDEX))
    assert found["split"] == "test" and "SHA-256" in found["rule"] and "75" in found["encoding"]
    seen = {p.name for split in ("train", "validation") for p in data.splits[split]}
    assert {row["name"] for row in found["photos"]} <= {p.name for p in data.splits["test"]} - seen
    assert sorted(row["label"] for row in found["photos"]) == [0, 0, 0, 1, 1, 1]
    assert sorted(files) == sorted(row["path"] for row in found["photos"])
    assert f"{FOLDER}/t-shirt/002.jpg" in files and f"{FOLDER}/a b/000.jpg" in files
    for row in found["photos"]:
        with Image.open(io.BytesIO(files[row["path"]])) as image:
            assert (image.format, image.size) == ("JPEG", (16, 16))
            original = np.asarray(Image.open(data.root / row["name"]))
            assert abs(int(np.asarray(image)[0, 0, 0]) - int(original[0, 0, 0])) <= 2


def test_zero_reference_photos_make_no_files(data):
    assert encode_reference(data, RULE, 0) == {}


@pytest.mark.parametrize("name", ["a\\b", ".hidden", "..", "x/y", "\n"])
def test_class_with_unusual_name_gets_a_plain_folder(data, name):
    odd = replace(data, classes=(name, "t-shirt"))
    paths = [p for p in encode_reference(odd, RULE, 2) if p != INDEX]
    assert paths == [f"{FOLDER}/class-0/000.jpg", f"{FOLDER}/t-shirt/000.jpg"]


def test_reference_set_is_read_back(tmp_path, data):
    bundle = make_bundle(tmp_path / "bundle")
    assert read_reference(bundle) is None
    before = bundle.manifest.model_hash
    bundle = add(bundle, encode_reference(data, RULE, 4))
    found = read_reference(bundle)
    assert [p.label for p in found.photos] == [0, 0, 1, 1]
    assert all(p.path.is_file() and sha256_file(p.path) == p.sha256 for p in found.photos)
    assert found.sentence() == "4 labelled photos of the test split"
    assert bundle.manifest.model_hash == before


def test_changed_photo_is_refused_with_the_bundle(tmp_path, data):
    bundle = add(make_bundle(tmp_path / "bundle"), encode_reference(data, RULE, 4))
    read_reference(bundle).photos[0].path.write_bytes(b"another")
    with pytest.raises(BundleError, match="SHA-256 differs"):
        Bundle.open(bundle.root)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({INDEX: b"{"}, "cannot be read"),
        ({INDEX: b"[]"}, "must be an object"),
        ({INDEX: b"\xff"}, "cannot be read"),
        ({INDEX: b"{}"}, "photos is missing"),
        (index(), "lists no photo"),
        (index({"path": "/etc/hostname", "label": 0}), "not listed in the manifest"),
        (index({"path": INDEX, "label": 3}), "is out of range"),
        (index({"path": INDEX, "label": -1}), "is out of range"),
        (index({"path": INDEX, "label": True}), "label must be a whole number"),
        (index({"path": INDEX, "label": "red"}), "label must be a whole number"),
        (index({"path": INDEX}), "label is missing"),
        (index({"path": INDEX, "label": 0}, split=None), "split must be a string"),
        (index({"path": INDEX, "label": 0}, split="a\x1b[2J\nb"), "is not a printable name"),
        (index({"path": INDEX, "label": 0}, {"path": INDEX, "label": 0}), "lists a photo twice"),
    ],
)
def test_invalid_index_is_one_sentence(tmp_path, files, why):
    bundle = add(make_bundle(tmp_path / "bundle"), files)
    with pytest.raises(BundleError, match=why) as caught:
        read_reference(bundle)
    assert "\n" not in str(caught.value)


def test_unknown_keys_of_the_index_are_ignored(tmp_path):
    bundle = add(make_bundle(tmp_path / "bundle"), {"x.jpg": b"x"})
    files = {INDEX: json.dumps({"photos": [{"path": "x.jpg", "label": 1, "new": 1}]}).encode()}
    assert read_reference(add(bundle, files)).sentence() == "1 labelled photo"


def test_set_digest_covers_files_and_classes():
    one, two = ("a" * 64, 0), ("b" * 64, 1)
    name = photo_set_digest([one, two])
    assert photo_set_digest([two, one]) == name
    assert len({name, photo_set_digest([one]), photo_set_digest([one, ("b" * 64, 0)])}) == 3


def test_shipped_bundle_has_seven_photos_of_each_class(tmp_path):
    bundle = Bundle.open(ASSETS / "clothing.ekb", cache=tmp_path)
    found = read_reference(bundle)
    assert found.split == "test"
    assert [sum(p.label == c for p in found.photos) for c in range(10)] == [7] * 10
    width, height = bundle.manifest.preprocessing.width, bundle.manifest.preprocessing.height
    for photo in found.photos:
        with Image.open(photo.path) as image:
            assert image.size == (width, height)
    named = json.loads((bundle.root / INDEX).read_text())["photos"]
    shipped = {p.name for p in (ASSETS / "photos").rglob("*.jpg")}
    # The demo has six skirts, by the same rule.
    assert len({Path(row["name"]).name for row in named} - shipped) == 1


def test_shipped_bundle_and_photos_stay_below_15_mb():
    assert sum(p.stat().st_size for p in ASSETS.rglob("*") if p.is_file()) <= 15_000_000
