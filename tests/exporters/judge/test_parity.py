"""Each parity gate passes a sound export and sees a wrong weight."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from onnx import numpy_helper  # noqa: E402
from torch import nn  # noqa: E402

from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.engines.exported import Exported  # noqa: E402
from exporters.engines.onnx_export import export_end_float, export_full, export_tail  # noqa: E402
from exporters.engines.weights import STORAGE  # noqa: E402
from exporters.judge.parity import (  # noqa: E402
    end_parity,
    full_parity,
    split_parity,
    stored_full,
    tail_parity,
)
from tests.support.export.tiny_halves import CHANNELS, SIZE, Full, batch, photos, trained  # noqa: E402

pytestmark = pytest.mark.export

PIXELS, _ = photos(32, seed=3)
SPEC = TensorSpec("features", (CHANNELS, 8, 8), "NCHW", "int8", 0.25, 0)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    halves = trained()
    return Full(halves.end.normalize, halves.end.trunk, halves.cloud.tail).eval()


def spoiled(file: Exported) -> Exported:
    """The same file with one output channel of its first stored weight turned round."""
    graph = onnx.load(file.source)
    weight = next(i for i in graph.graph.initializer if len(i.dims) > 1 and np.prod(i.dims) > 256)
    values = numpy_helper.to_array(weight).copy()
    values[0] = -values[0]
    weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    other = file.source.with_name("spoiled-" + file.source.name)
    onnx.save(graph, other)
    return Exported(other, file.entry)


def test_full_parity_of_float_weights_passes(model):
    gate = full_parity(model, PIXELS, size=SIZE)
    assert gate.ok
    assert gate.measured < 1e-4
    assert "32 of 32 decisions are alike" in gate.sentence


@pytest.mark.parametrize("storage", STORAGE)
def test_stored_full_with_wrong_weight_fails(model, storage, tmp_path):
    full = export_full(model, tmp_path / "full.onnx", size=SIZE, weights=storage)
    assert stored_full(model, full, PIXELS, storage=storage).ok
    assert stored_full(model, spoiled(full), PIXELS, storage="fp16").ok is False


@pytest.mark.parametrize("storage", STORAGE)
def test_tail_parity_with_wrong_weight_fails(storage, tmp_path):
    halves = trained()
    tail = export_tail(halves.cloud, SPEC, tmp_path / "tail.onnx", weights=storage)
    with torch.no_grad():
        real, _, _ = halves(batch(PIXELS))
    features = (real / 0.25).round().clamp(-128, 127).to(torch.int8).numpy()
    assert tail_parity(halves, tail, features, storage=storage).ok
    assert tail_parity(halves, spoiled(tail), features, storage="fp16").ok is False


def test_tail_parity_with_wrong_feature_scale_fails(tmp_path):
    halves = trained()
    other = TensorSpec("features", (CHANNELS, 8, 8), "NCHW", "int8", 0.5, 0)
    tail = export_tail(halves.cloud, other, tmp_path / "tail.onnx")
    features = np.random.default_rng(0).integers(-20, 20, (8, CHANNELS, 8, 8)).astype(np.int8)
    assert tail_parity(halves, tail, features, storage="int8").ok is False


def test_end_parity_with_wrong_weight_fails(tmp_path):
    halves = trained()
    twin = export_end_float(halves.end, tmp_path / "twin.onnx", size=SIZE)
    assert end_parity(halves, twin, PIXELS).ok
    assert end_parity(halves, spoiled(twin), PIXELS).ok is False


def test_split_parity_with_lost_layer_fails(model):
    halves = trained()
    normalize, trunk, tail = halves.end.normalize, halves.end.trunk, halves.cloud.tail
    inputs = batch(PIXELS).numpy()
    assert split_parity(model, nn.Sequential(normalize, trunk), tail, inputs).measured < 1e-6
    assert split_parity(model, trunk, tail, inputs).ok is False
