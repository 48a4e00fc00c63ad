"""``edge-kit calibrate`` writes the tuning and never the manifest."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from edge_kit.bundle import Bundle
from edge_kit.bundle.tuning import TUNING, Tuning, read_tuning, write_tuning
from edge_kit.errors import BundleError
from exporters.cli import calibrate
from exporters.recalibrate import recalibrate
from tests.support.tiny import CLASSES
from tests.support.tiny_splits import SCHEMA1, copy_schema1, make_bundle_with_two_splits


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos")
    dice = np.random.default_rng(0)
    for channel, name in enumerate(CLASSES):
        (root / name).mkdir()
        for index in range(10):
            pixels = dice.integers(100, 150, (16, 16, 3)).astype(np.uint8)
            pixels[..., channel] += np.uint8(index)
            Image.fromarray(pixels).save(root / name / f"{index}.png")
    return root


def test_schema_1_bundle_keeps_its_manifest_byte_for_byte(tmp_path, photos):
    root = copy_schema1(tmp_path / "old")
    found = recalibrate(root, photos, engine="onnx")
    assert (root / "manifest.json").read_bytes() == (SCHEMA1 / "manifest.json").read_bytes()
    after = Bundle.open(root)
    assert after.rule == found.fitted.rule != after.split.exit
    assert after.curve == found.fitted.curve
    assert sorted(p.name for p in root.iterdir()) == ["cloud", "end", "manifest.json", TUNING]


def test_second_calibration_starts_from_the_first_and_keeps_other_keys(tmp_path, photos):
    bundle = make_bundle_with_two_splits(tmp_path / "both")
    write_tuning(bundle.root, Tuning("lite", byte_budget=7))
    first = recalibrate(bundle.root, photos)
    assert first.engine.startswith("tflite") and first.old_threshold == -1.0
    second = recalibrate(bundle.root, photos)
    assert second.old_threshold == first.fitted.rule.threshold
    kept = read_tuning(bundle.root)
    assert (kept.split, kept.byte_budget) == ("lite", 7)


def test_named_split_is_calibrated_and_runs_from_then_on(tmp_path, photos):
    root = make_bundle_with_two_splits(tmp_path / "both").root
    command = [str(root), "--data", str(photos), "--split", "lite", "--json"]
    done = CliRunner().invoke(calibrate, command, catch_exceptions=False)
    assert json.loads(done.stdout)["engine"].startswith("tflite")
    assert Bundle.open(root).split.name == read_tuning(root).split == "lite"
    again = recalibrate(root, photos, split="pool")
    assert again.engine.startswith("onnx") and again.old_threshold == 0.5
    assert read_tuning(root).split == "pool"


def test_packed_bundle_is_refused(tmp_path, photos):
    (tmp_path / "tiny.ekb").write_bytes(b"zip")
    with pytest.raises(BundleError, match="unpack it into a directory"):
        recalibrate(tmp_path / "tiny.ekb", photos)
