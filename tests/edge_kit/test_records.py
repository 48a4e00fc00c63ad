"""Records: frozen dataclasses to JSON values and back."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from edge_kit.errors import BundleError
from edge_kit.records import from_json, to_json


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Tensor:
    scale: float
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.scale < 0:
            raise ValueError("scale is negative")


@dataclass(frozen=True)
class Row:
    features: Tensor
    label: str = field(metadata={"key": "class"})
    colour: Colour = Colour.RED
    shares: Mapping[str, float] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)
    top1: float | None = None
    done: bool = False
    file: Path = Path("a")


@dataclass(frozen=True)
class Table:
    rows: tuple[Row, ...]


ROW = Row(Tensor(0.5, (1, 2)), "red", shares={"a": 0.5}, free={"deep": [1, {"x": None}]})
TABLE = Table((ROW,))


def test_record_survives_json_text():
    data = to_json(TABLE)
    assert data["rows"][0]["class"] == "red"
    assert data["rows"][0]["features"] == {"scale": 0.5, "shape": [1, 2]}
    assert from_json(Table, json.loads(json.dumps(data))) == TABLE


def test_unknown_keys_are_ignored_and_defaults_filled_in():
    data = {"features": {"scale": 1, "shape": [], "new": 1}, "class": "x", "later": {}}
    assert from_json(Row, data) == Row(Tensor(1.0, ()), "x")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("features", {"scale": "x", "shape": []}, "features.scale must be a number, not 'x'"),
        ("features", {"scale": True, "shape": []}, "features.scale must be a number, not True"),
        ("features", {"scale": float("nan"), "shape": []}, "scale must be a finite number"),
        ("features", {"scale": 1, "shape": "12"}, "features.shape must be a list, not '12'"),
        ("features", {"scale": 1, "shape": [1, 2.0]}, r"shape\[1\] must be a whole number"),
        ("features", {"shape": []}, "features.scale is missing"),
        ("features", {"scale": -1, "shape": []}, "features: scale is negative"),
        ("features", [1], r"features must be an object, not \[1\]"),
        ("class", 3, "class must be a string, not 3"),
        ("colour", "blue", "colour: 'blue' is not a valid Colour"),
        ("shares", {"a": "b"}, "shares.a must be a number, not 'b'"),
        ("free", [], "free must be an object"),
        ("top1", "1", "top1 must be a number, not '1'"),
        ("done", 1, "done must be true or false, not 1"),
        ("file", None, "file must be a string, not None"),
    ],
)
def test_wrong_value_is_refused_with_its_path(key, value, message):
    data = copy.deepcopy(to_json(TABLE))
    data["rows"][0][key] = value
    with pytest.raises(BundleError, match=rf"^m\.json: rows\[0\]\..*{message}"):
        from_json(Table, data, "m.json", error=BundleError)


@pytest.mark.parametrize(("data", "message"), [({}, "rows is missing"), (3, "must be an object")])
def test_content_of_another_shape_is_refused(data, message):
    with pytest.raises(ValueError, match=message):
        from_json(Table, data)


def test_importing_records_leaves_cattrs_unloaded():
    code = "import edge_kit.records, sys; sys.exit('cattrs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
