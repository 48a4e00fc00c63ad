"""Which split of a bundle is used, and what the tuning changes of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest

from edge_kit.bundle import Bundle, pack
from edge_kit.bundle.split import Costs, spoken
from edge_kit.bundle.tuning import TUNING, Tuning, read_tuning, write_tuning
from edge_kit.errors import BundleError
from edge_kit.exits import CurvePoint, ExitRule
from tests.support.tiny import write_manifest
from tests.support.tiny_splits import SCHEMA1, SCHEMA1_HASH, make_bundle_with_two_splits


@pytest.fixture
def both(tmp_path) -> Bundle:
    return make_bundle_with_two_splits(tmp_path / "both")


def tuned(bundle: Bundle, **values) -> Bundle:
    (bundle.root / TUNING).write_text(json.dumps(values))
    return Bundle.open(bundle.root)


def test_first_split_is_the_default(both):
    assert (both.index, both.split.name) == (0, "pool")
    assert [f.path for f in both.end_files()] == ["end/any.onnx"]


def test_named_split_brings_its_own_files_and_rule(both):
    lite = Bundle.open(both.root, split="lite")
    assert lite.index == 1
    assert [f.path for f in lite.end_files()] == ["end/int8.tflite"]
    assert lite.tail_file().path == "cloud/least.onnx"
    assert (lite.rule, lite.curve) == (ExitRule(-1.0), ())
    with pytest.raises(BundleError, match=r"no model file end/any\.onnx"):
        lite.model_file("end/any.onnx")


def test_unknown_split_is_refused_with_the_names(both):
    with pytest.raises(BundleError, match="no split 'deep'; it has: pool, lite"):
        Bundle.open(both.root, split="deep")


def test_tuning_chooses_the_split_and_a_name_wins_over_it(both):
    assert tuned(both, split="lite").split.name == "lite"
    assert Bundle.open(both.root, split="pool").split.name == "pool"


def test_tuned_rule_wins_over_the_manifest_for_its_own_split_only(both):
    curve = [{"threshold": 0.1, "device_share": 0.2, "accuracy": 0.9, "mean_bytes": 5}]
    lite = tuned(both, split="lite", threshold=0.25, temperature=2, curve=curve)
    assert lite.rule == ExitRule(0.25, 2.0)
    assert lite.curve == (CurvePoint(0.1, 0.2, 0.9, 5.0),)
    other = lite.using("pool")
    assert (other.rule, other.is_tuned) == (both.split.exit, False)
    assert tuned(both, threshold=0.1).rule == replace(both.split.exit, threshold=0.1)


def test_tuning_leaves_the_model_hash_alone(both):
    assert tuned(both, threshold=0.1).manifest.model_hash == both.manifest.model_hash


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"split": "deep"}', "names the split 'deep', the bundle has: pool, lite"),
        ('{"threshold": "low"}', "threshold must be a number, not 'low'"),
        ('{"threshold": true}', "threshold must be a number, not True"),
        ('{"temperature": 0}', "temperature must be above 0"),
        ('{"byte_budget": 1.5}', "byte_budget must be a whole number"),
        ("[]", "must be an object"),
        ("{", "cannot be read"),
    ],
)
def test_wrong_tuning_is_refused_with_its_file_and_key(both, content, message):
    (both.root / TUNING).write_text(content)
    with pytest.raises(BundleError, match=rf"tuning\.json.*{message}.*; correct it or remove it"):
        Bundle.open(both.root)


def test_written_tuning_is_read_back(tmp_path):
    tuning = Tuning("pool", 0.5, None, 1000, (CurvePoint(0.1, 0.2, 0.9, 5.0),))
    write_tuning(tmp_path, tuning)
    assert read_tuning(tmp_path) == tuning
    assert tuning.sentence() == "split pool, threshold 0.5, byte budget 1000"
    assert Tuning().sentence() == "none"
    assert [p.name for p in tmp_path.iterdir()] == [TUNING]


def test_tuning_is_packed_with_the_bundle(both, tmp_path):
    tuned(both, split="lite")
    pack(both.root, tmp_path / "both.ekb")
    assert Bundle.open(tmp_path / "both.ekb", cache=tmp_path / "cache").split.name == "lite"


def test_unknown_split_leaves_the_unpacked_copy_alone(both, tmp_path):
    pack(both.root, tmp_path / "both.ekb")
    copy = Bundle.open(tmp_path / "both.ekb", cache=tmp_path / "cache").root
    before = copy.stat().st_ino
    with pytest.raises(BundleError, match="no split 'deep'"):
        Bundle.open(tmp_path / "both.ekb", split="deep", cache=tmp_path / "cache")
    assert copy.stat().st_ino == before


def test_file_shared_by_two_splits_is_stored_once(both, tmp_path):
    pool, lite = both.manifest.splits
    shared = replace(both.manifest, splits=(pool, replace(lite, end=pool.end)))
    bundle = write_manifest(both.root, shared)
    assert bundle.using("lite").end_files() == bundle.end_files()
    pack(both.root, tmp_path / "both.ekb")
    names = zipfile.ZipFile(tmp_path / "both.ekb").namelist()
    assert names.count("end/any.onnx") == 1 and "end/int8.tflite" not in names


def test_model_hash_covers_which_tail_belongs_to_which_split(both):
    pool, lite = both.manifest.splits
    swapped = (replace(pool, tail=lite.tail), replace(lite, tail=pool.tail))
    assert replace(both.manifest, splits=swapped).model_hash != both.manifest.model_hash


def test_schema_1_bundle_opens_with_its_hash_and_one_split():
    bundle = Bundle.open(SCHEMA1)
    assert bundle.manifest.schema == 1
    assert bundle.manifest.model_hash == SCHEMA1_HASH
    assert bundle.rule == ExitRule(0.5)
    assert len(bundle.curve) == 11
    assert [f.role for f in bundle.split.engines] == ["end", "tail"]


def test_schema_1_figures_become_costs(tmp_path):
    data = json.loads((SCHEMA1 / "manifest.json").read_text())
    share = {who: {"value": v} for who, v in (("device", 0.8), ("cloud", 0.9), ("hybrid", 0.85))}
    data["figures"] = {"test": {"photos": 9, "bytes_per_message": 60.5, "accuracy": share}}
    costs = type(Bundle.open(SCHEMA1).manifest).from_json(data).splits[0].costs
    assert costs == Costs(None, None, 60.5, None, 0.8, 0.9, 0.85, 9)
    assert spoken(costs).startswith("message bytes mean 60.5, device accuracy 0.8")
    assert spoken(Costs()) == ""
    assert spoken(Costs(device_macs=2_820_096)) == "device macs 2820096"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engines": None}, "not valid"),
        ({"cuts": []}, "names cut 0, which does not exist"),
        ({"files": []}, "not valid"),
        ({"exit": {"measure": "margin"}}, r"splits\[0\].exit"),
    ],
)
def test_damaged_schema_1_manifest_is_refused(change, message):
    data = json.loads((SCHEMA1 / "manifest.json").read_text()) | change
    with pytest.raises(BundleError, match=message):
        type(Bundle.open(SCHEMA1).manifest).from_json(data)


def test_rewritten_bundle_of_schema_1_keeps_files_and_hash(tmp_path):
    script = [sys.executable, "scripts/rewrite_bundle.py", str(SCHEMA1), str(tmp_path / "new.ekb")]
    subprocess.run(script, check=True, env=dict(os.environ), capture_output=True)
    new = Bundle.open(tmp_path / "new.ekb", cache=tmp_path / "cache").manifest
    assert (new.schema, new.model_hash) == (2, SCHEMA1_HASH)
    assert all(file.size for file in new.stored.values())
