"""A whole bundle of a few hundred bytes, made without torch: which of red, green, blue is it?

The end model averages 4 x 4 blocks of a 16 x 16 image into int8 features (3, 4, 4) and scores
their channel means; pure colours are confident, greys are not. The tail scores the same means
with a higher gain.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edge_kit.bundle import MANIFEST, Bundle, sha256_file
from edge_kit.bundle.manifest import Manifest, Preprocessing
from edge_kit.bundle.split import EngineFile, Split
from edge_kit.exits import CurvePoint, ExitRule
from edge_kit.tensors import TensorSpec

SIZE = 16
CLASSES = ("red", "green", "blue")
IMAGE = TensorSpec("image", (3, SIZE, SIZE), "NCHW", "uint8", 1.0, 0)
FEATURES = TensorSpec("features", (3, 4, 4), "NCHW", "int8", 2.0, -64)
LOGITS = TensorSpec("logits", (3,), "NC", "float32")


def _const(name: str, value: object, dtype: type) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value, dtype=dtype), name)


def _model(nodes: list, inputs: list, outputs: list, consts: list) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "tiny", inputs, outputs, consts)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def _value(spec: TensorSpec, kind: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(spec.name, kind, ["n", *spec.shape])


def end_model() -> onnx.ModelProto:
    """uint8 image -> int8 features, float logits."""
    nodes = [
        helper.make_node("DequantizeLinear", ["image", "one", "image_zp"], ["x"]),
        helper.make_node("AveragePool", ["x"], ["f"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("QuantizeLinear", ["f", "fs", "fz"], ["features"]),
        helper.make_node("DequantizeLinear", ["features", "fs", "fz"], ["fd"]),
        helper.make_node("ReduceMean", ["fd"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("Mul", ["m", "gain"], ["logits"]),
    ]
    consts = [
        _const("one", 1.0, np.float32),
        _const("image_zp", 0, np.uint8),
        _const("fs", FEATURES.scale, np.float32),
        _const("fz", FEATURES.zero_point, np.int8),
        _const("gain", 0.05, np.float32),
    ]
    return _model(
        nodes,
        [_value(IMAGE, TensorProto.UINT8)],
        [_value(FEATURES, TensorProto.INT8), _value(LOGITS, TensorProto.FLOAT)],
        consts,
    )


def tail_model(gain: float = 0.2) -> onnx.ModelProto:
    """int8 features -> float logits."""
    nodes = [
        helper.make_node("DequantizeLinear", ["features", "fs", "fz"], ["fd"]),
        helper.make_node("ReduceMean", ["fd"], ["m"], axes=[2, 3], keepdims=0),
        helper.make_node("Mul", ["m", "gain"], ["logits"]),
    ]
    consts = [
        _const("fs", FEATURES.scale, np.float32),
        _const("fz", FEATURES.zero_point, np.int8),
        _const("gain", gain, np.float32),
    ]
    return _model(
        nodes,
        [_value(FEATURES, TensorProto.INT8)],
        [_value(LOGITS, TensorProto.FLOAT)],
        consts,
    )


def make_bundle(root: Path, *, threshold: float = 0.5, gain: float = 0.2) -> Bundle:
    """Write the bundle to `root` and open it; another `gain` makes another model hash."""
    (root / "end").mkdir(parents=True)
    (root / "cloud").mkdir()
    onnx.save(end_model(), root / "end/any.onnx")
    onnx.save(tail_model(gain), root / "cloud/tail.onnx")

    def entry(path: str, role: str, inputs: tuple, outputs: tuple) -> EngineFile:
        file = root / path
        digest, size = sha256_file(file), file.stat().st_size
        versions = {"onnx_ir": 8, "opset": 17}
        return EngineFile(path, role, "onnx", "any", digest, size, inputs, outputs, versions)

    manifest = Manifest(
        name="tiny",
        classes=CLASSES,
        preprocessing=Preprocessing(SIZE, SIZE),
        splits=(
            Split(
                "pool",
                FEATURES,
                0.5,
                end=(entry("end/any.onnx", "end", (IMAGE,), (FEATURES, LOGITS)),),
                tail=entry("cloud/tail.onnx", "tail", (FEATURES,), (LOGITS,)),
                exit=ExitRule(threshold),
                curve=tuple(
                    CurvePoint(t / 10, t / 10, 0.9, 100.0 * (1 - t / 10)) for t in range(11)
                ),
            ),
        ),
    )
    return write_manifest(root, manifest)


def write_manifest(root: Path, manifest: Manifest) -> Bundle:
    """Write a manifest and open the bundle."""
    (root / MANIFEST).write_text(json.dumps(manifest.to_json(), indent=1), encoding="utf-8")
    return Bundle.open(root)


def with_split(bundle: Bundle, **changes: Any) -> Bundle:
    """Return a bundle whose split in use has other values; nothing is written."""
    splits = list(bundle.manifest.splits)
    splits[bundle.index] = replace(bundle.split, **changes)
    return replace(bundle, manifest=replace(bundle.manifest, splits=tuple(splits)))
