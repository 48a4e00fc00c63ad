"""Tiny bundles with two splits, and one of schema 1."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import onnx

from edge_kit.bundle import Bundle, sha256_file
from edge_kit.exits import ExitRule
from tests.support import tiny_tflite
from tests.support.tiny import make_bundle, tail_model, write_manifest

SCHEMA1 = Path(__file__).parent / "data" / "tiny-schema1"
"""What tests/support/tiny.py wrote before schema 2."""

SCHEMA1_HASH = "8da3ea0823ab8869e2c083feb332f37883164d4c87caf3dd815f68488b633a6a"


def copy_schema1(root: Path) -> Path:
    return Path(shutil.copytree(SCHEMA1, root))


def make_bundle_with_two_splits(root: Path) -> Bundle:
    """Add the split ``lite``: TFLite only, sends every sample, its tail names the least colour."""
    bundle = make_bundle(root)
    end, tail = root / "end/int8.tflite", root / "cloud/least.onnx"
    end.write_bytes(tiny_tflite.FILE.read_bytes())
    onnx.save(tail_model(gain=-0.2), tail)
    entry = replace(
        bundle.tail_file(),
        path="cloud/least.onnx",
        sha256=sha256_file(tail),
        size=tail.stat().st_size,
    )
    lite = replace(
        bundle.split,
        name="lite",
        end=(tiny_tflite.entry("end/int8.tflite", end),),
        tail=entry,
        exit=ExitRule(-1.0),
        curve=(),
    )
    return write_manifest(root, replace(bundle.manifest, splits=(bundle.split, lite)))
