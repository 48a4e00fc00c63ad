"""Float ONNX: parity with torch, names, versions, and what cannot be exported."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from edge_kit.errors import ExportError  # noqa: E402
from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.engines.onnx_export import (  # noqa: E402
    IR_VERSION,
    OPSET,
    export_end_float,
    export_full,
    export_tail,
    requirements,
    trace_to_onnx,
)
from exporters.graph.cuts import choose, find_cuts, split  # noqa: E402
from exporters.graph.trace import trace  # noqa: E402
from tests.support.export import tiny_nets  # noqa: E402
from tests.support.export.tiny_halves import (  # noqa: E402
    CHANNELS,
    PER_CHANNEL,
    SIZE,
    Full,
    batch,
    photos,
    trained,
)

pytestmark = pytest.mark.export

PIXELS, _ = photos(96, seed=3)
SPEC = TensorSpec("features", (CHANNELS, 8, 8), "NCHW", "int8", 0.25, 0)


def run(path, x) -> np.ndarray:
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@pytest.mark.parametrize("kind", sorted(tiny_nets.BLOCKS))
def test_exported_block_folds_norms_and_keeps_values(tmp_path, kind):
    model, x = tiny_nets.net(kind), tiny_nets.images(5)
    path = tmp_path / "new" / "folder" / "m.onnx"
    trace_to_onnx(trace(model, tiny_nets.SHAPE).module, x[:1], path, outputs=("logits",))
    with torch.no_grad():
        np.testing.assert_allclose(run(path, x), model(x).numpy(), atol=1e-5)
    kinds = [n.op_type for n in onnx.load(path).graph.node]
    assert kinds.count("BatchNormalization") == 0
    assert "Conv" in kinds


@pytest.mark.parametrize("kind", sorted(tiny_nets.BLOCKS))
def test_exported_halves_in_a_row_equal_whole(tmp_path, kind):
    whole, x = trace(tiny_nets.net(kind), tiny_nets.SHAPE), tiny_nets.images(4)
    cut = choose(find_cuts(whole), "block")
    trunk, tail = split(whole, cut)
    trace_to_onnx(trunk, x[:1], tmp_path / "trunk.onnx", outputs=("features",))
    features = torch.zeros(1, *cut.shape)
    trace_to_onnx(tail, features, tmp_path / "tail.onnx", outputs=("logits",))
    middle = torch.from_numpy(run(tmp_path / "trunk.onnx", x))
    with torch.no_grad():
        np.testing.assert_allclose(run(tmp_path / "tail.onnx", middle), whole(x), atol=1e-5)


def test_exported_file_has_given_names_old_versions_and_free_batch(tmp_path):
    path = tmp_path / "m.onnx"
    trace_to_onnx(
        tiny_nets.net("residual"),
        tiny_nets.images(1),
        path,
        inputs=("picture",),
        outputs=("answer",),
    )
    model = onnx.load(path)
    (given,), (made,) = model.graph.input, model.graph.output
    assert (given.name, made.name) == ("picture", "answer")
    for value in (given, made):
        assert value.type.tensor_type.shape.dim[0].dim_param == "n"
    assert requirements(path) == {"onnx_ir": IR_VERSION, "opset": OPSET}


def test_requirements_name_domains_beyond_onnx(tmp_path):
    trace_to_onnx(nn.ReLU(), torch.zeros(1, 3), tmp_path / "m.onnx", outputs=("y",))
    model = onnx.load(tmp_path / "m.onnx")
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "m.onnx")
    assert requirements(tmp_path / "m.onnx")["domains"] == {"com.microsoft": 1}


def test_model_in_training_mode_is_exported_for_inference(tmp_path):
    model = nn.Sequential(nn.Dropout(0.9), nn.Flatten()).train()
    trace_to_onnx(model, torch.ones(1, 3, 2, 2), tmp_path / "m.onnx", outputs=("y",))
    assert (run(tmp_path / "m.onnx", torch.ones(2, 3, 2, 2)) == 1).all()


def float_codes() -> np.ndarray:
    with torch.no_grad():
        features, _ = trained().end(batch(PIXELS))
    return np.clip(np.rint(features.numpy() / 0.25), -128, 127)


def test_float_twin_equals_torch(tmp_path):
    halves = trained(*PER_CHANNEL)
    twin = export_end_float(halves.end, tmp_path / "twin.onnx", size=SIZE)
    with torch.no_grad():
        features, logits = halves.end(batch(PIXELS))
    given = twin(PIXELS)
    np.testing.assert_allclose(given["features"], features.numpy(), atol=1e-4)
    # A feature on the edge between two levels may round either way.
    assert (np.abs(given["logits"] - logits.numpy()).max(1) < 1e-3).mean() > 0.95


@pytest.mark.parametrize(("weights", "loss"), [("fp32", 1e-5), ("fp16", 2e-3), ("int8", 0.05)])
def test_tail_takes_int8_features_in_any_batch(tmp_path, weights, loss):
    halves = trained()
    codes = float_codes()
    with torch.no_grad():
        expected = halves.cloud(torch.from_numpy(codes.astype(np.float32)) * 0.25).numpy()
    tail = export_tail(halves.cloud, SPEC, tmp_path / "tail.onnx", weights=weights)
    given = tail(codes.astype(np.int8))["logits"]
    assert np.abs(given - expected).max() <= loss * np.abs(expected).max()
    one = tail(codes[:1].astype(np.int8))["logits"]
    np.testing.assert_allclose(one, given[:1], atol=1e-4)
    assert (tail.entry.role, tail.entry.path) == ("tail", "cloud/tail.onnx")
    assert tail.entry.inputs == (SPEC,)


def test_tail_subtracts_zero_point_and_multiplies_by_scale(tmp_path):
    shifted = TensorSpec("features", (CHANNELS, 8, 8), "NCHW", "int8", 0.125, -7)
    codes = np.random.default_rng(0).integers(-128, 128, (5, CHANNELS, 8, 8)).astype(np.int8)
    tail = export_tail(trained().cloud, shifted, tmp_path / "tail.onnx")
    real = torch.from_numpy((codes.astype(np.float32) + 7) * 0.125)
    with torch.no_grad():
        expected = trained().cloud(real).numpy()
    np.testing.assert_allclose(tail(codes)["logits"], expected, atol=1e-4)


def test_full_model_on_raw_pixels_equals_torch(tmp_path):
    halves = trained()
    model = Full(halves.end.normalize, halves.end.trunk, halves.cloud.tail).eval()
    full = export_full(model, tmp_path / "full.onnx", size=SIZE)
    with torch.no_grad():
        expected = model(batch(PIXELS)).numpy()
    np.testing.assert_allclose(full(PIXELS)["logits"], expected, atol=1e-4)
    assert full.entry.inputs[0].dtype == "float32"


def test_compressed_weights_make_smaller_file(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AvgPool2d(30), nn.Flatten())
    model.append(nn.Linear(32, 256))
    sizes = {}
    for storage in ("fp32", "fp16", "int8"):
        full = export_full(model, tmp_path / f"{storage}.onnx", size=SIZE, weights=storage)
        stored = onnx.load(full.source).graph.initializer
        kinds = {i.data_type for i in stored if not i.name.endswith("_scale") and len(i.dims) > 1}
        sizes[storage] = full.entry.size
        want = {"fp32": "FLOAT", "fp16": "FLOAT16", "int8": "INT8"}[storage]
        assert kinds == {getattr(onnx.TensorProto, want)}
    assert sizes["int8"] < sizes["fp16"] < sizes["fp32"]


@pytest.mark.parametrize("storage", ["fp16", "int8"])
def test_compressed_weights_are_unfolded_at_load(tmp_path, storage):
    """Whatever is not folded at load is computed again at every run."""
    model = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.AvgPool2d(30), nn.Flatten())
    model.append(nn.Linear(32, 256))
    full = export_full(model, tmp_path / "full.onnx", size=SIZE, weights=storage)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    ort.InferenceSession(full.source, options, providers=["CPUExecutionProvider"])
    loaded = onnx.load(tmp_path / "loaded.onnx").graph
    kinds = {n.op_type for n in loaded.node}
    assert not kinds & {"Cast", "Mul", "DequantizeLinear"}
    assert {i.data_type for i in loaded.initializer if len(i.dims) > 1} == {onnx.TensorProto.FLOAT}


def test_operation_torch_cannot_export_is_named(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x).abs().flatten(1)

    with pytest.raises(ExportError, match="torch cannot export Odd to ONNX"):
        export_full(Odd(), tmp_path / "odd.onnx", size=SIZE)
