from __future__ import annotations

import contextlib
import copy
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_kit.bundle.manifest import SCHEMA, Manifest, Preprocessing, StoredFile
from edge_kit.bundle.split import Costs, EngineFile, Split
from edge_kit.errors import BundleError
from edge_kit.exits import CurvePoint, ExitRule
from edge_kit.tensors import TensorSpec

IMAGE = TensorSpec("image", (3, 8, 8), "NCHW", "uint8")
FEATURES = TensorSpec("features", (2, 4, 4), "NCHW", "int8", 0.5, 0)
LOGITS = TensorSpec("logits", (2,), "NC", "float32")
END = EngineFile(
    "end/any.onnx", "end", "onnx", "any", "0" * 64, 10, (IMAGE,), (FEATURES, LOGITS),
    {"onnx_ir": 8, "opset": 17}, {"ms": 3.5},
)  # fmt: skip
TAIL = EngineFile("cloud/t.onnx", "tail", "onnx", "any", "2" * 64, 5, (FEATURES,), (LOGITS,))
FULL = EngineFile("cloud/full.onnx", "full", "onnx", "any", "1" * 64, 20, (IMAGE,), (LOGITS,))
SPLIT = Split(
    "blocks.7", FEATURES, 0.4, (END,), TAIL, ExitRule(0.5, 1.25),
    (CurvePoint(0.0, 0.1, 0.9, 400.0),), Costs(device_macs=7),
)  # fmt: skip
MANIFEST = Manifest(
    "tiny", ("cat", "dog"), Preprocessing(8, 8, mean=(127.0,) * 3, std=(128.0,) * 3),
    (SPLIT,), (FULL,), {"labels.txt": StoredFile("2" * 64, 7)}, {"top1": 0.9},
)  # fmt: skip


def having(**changes) -> Manifest:
    return replace(MANIFEST, splits=(replace(SPLIT, **changes),))


def changed(*path, to) -> dict:
    """Return the manifest's JSON with the value at `path` replaced, or removed by `...`."""
    data = json.loads(json.dumps(MANIFEST.to_json()))
    place = data
    for key in path[:-1]:
        place = place[key]
    if to is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = to
    return data


def test_manifest_survives_json_text():
    assert Manifest.from_json(json.loads(json.dumps(MANIFEST.to_json()))) == MANIFEST


def test_unknown_keys_are_ignored():
    data = MANIFEST.to_json()
    data["later"] = 1
    data["splits"][0]["end"][0]["later"] = 1
    data["splits"][0]["features"]["later"] = 1
    assert Manifest.from_json(data) == MANIFEST


def test_wire_id_is_the_start_of_the_model_hash():
    assert MANIFEST.wire_id.hex() == MANIFEST.model_hash[:16]
    assert len(MANIFEST.wire_id) == 8


@pytest.mark.parametrize(
    "other",
    [
        replace(MANIFEST, name="other name"),
        having(exit=ExitRule(0.1)),
        having(curve=()),
        having(costs=Costs()),
        replace(MANIFEST, figures={}),
        replace(MANIFEST, schema=1),
        having(end=(replace(END, figures={}),)),
    ],
)
def test_model_hash_ignores_what_decides_no_answer(other):
    assert other.model_hash == MANIFEST.model_hash


@pytest.mark.parametrize(
    "other",
    [
        replace(MANIFEST, classes=("dog", "cat")),
        replace(MANIFEST, preprocessing=Preprocessing(8, 8, "crop")),
        having(features=replace(FEATURES, scale=0.25)),
        having(end=(replace(END, sha256="f" * 64),)),
        having(end=(replace(END, inputs=(replace(IMAGE, zero_point=1),)),)),
        having(tail=None),
        replace(MANIFEST, full=()),
    ],
)
def test_model_hash_changes_with_what_decides_answers(other):
    assert other.model_hash != MANIFEST.model_hash


@pytest.mark.parametrize("key", ["name", "classes", "preprocessing", "splits", "files"])
def test_missing_key_is_named(key):
    with pytest.raises(BundleError, match=key):
        Manifest.from_json(changed(key, to=...))


@pytest.mark.parametrize(
    ("path", "to", "words"),
    [
        (("schema",), SCHEMA + 1, "update edge-kit"),
        (("schema",), ..., "no schema"),
        (("schema",), "1", "no schema"),
        (("schema",), True, "no schema"),
        (("schema",), 0, "no schema"),
        (("model_hash",), "0" * 64, "model hash"),
        (("model_hash",), ..., "model hash"),
        (("classes",), ["only"], "two classes"),
        (("classes",), None, "classes"),
        (("splits",), [], "no split"),
        (("splits",), {"a": 1}, "splits must be a list"),
        (("splits",), [MANIFEST.to_json()["splits"][0]] * 2, "same name"),
        (("splits", 0, "features", "scale"), 0, r"splits\[0\].features: scale"),
        (("splits", 0, "features", "scale"), "x", r"splits\[0\].features.scale must be a number"),
        (("splits", 0, "features", "shape"), [2, 4], "shape"),
        (("splits", 0, "macs_share"), ..., "macs_share is missing"),
        (("splits", 0, "end", 0, "path"), "other", "does not list the model file 'other'"),
        (("splits", 0, "exit", "measure"), "margin", "margin"),
        (("splits", 0, "exit", "temperature"), -1, "temperature"),
        (("files", "end/any.onnx", "size"), "large", "size must be a whole number"),
        (("preprocessing", "resize"), "stretch", "stretch"),
        (("preprocessing", "colour"), "BGR", "BGR"),
        (("preprocessing", "width"), math.inf, "preprocessing"),
        (("preprocessing", "height"), 0, "at least 1 x 1"),
        (("files",), [], "files"),
        (("figures",), 3, "figures"),
    ],
)
def test_invalid_manifest_is_one_sentence(path, to, words):
    with pytest.raises(BundleError, match=words) as caught:
        Manifest.from_json(changed(*path, to=to))
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
PATHS = [
    (), ("schema",), ("classes",), ("preprocessing",), ("preprocessing", "mean"), ("splits",),
    ("splits", 0), ("splits", 0, "features"), ("splits", 0, "features", "shape"), ("full",),
    ("splits", 0, "end"), ("splits", 0, "end", 0), ("splits", 0, "end", 0, "requires"),
    ("splits", 0, "tail"), ("splits", 0, "exit"), ("splits", 0, "curve"), ("splits", 0, "costs"),
    ("files",), ("files", "end/any.onnx"), ("figures",),
]  # fmt: skip


@given(st.sampled_from(PATHS), JSON)
def test_any_json_anywhere_is_read_or_refused(path, value):
    whole = {"manifest": copy.deepcopy(MANIFEST.to_json())}
    place, keys = whole, ("manifest", *path)
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    data = whole["manifest"] if isinstance(whole["manifest"], dict) else {}
    with contextlib.suppress(BundleError):
        assert Manifest.from_json(data).model_hash == MANIFEST.model_hash
