from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest

from edge_kit.engines import FakeEngine
from edge_kit.engines import tflite as tflite_module
from edge_kit.engines.end import EndModel
from edge_kit.engines.load import load_engine, missing_extra
from edge_kit.engines.onnx import OnnxEngine
from edge_kit.engines.select import open_tail
from edge_kit.engines.tflite import INTERPRETERS, TfliteEngine
from edge_kit.errors import EngineError, MissingExtraError
from edge_kit.tensors import TensorSpec, to_layout
from tests.support import tiny, tiny_tflite

HAVE = [m for m in INTERPRETERS if importlib.util.find_spec(m.partition(".")[0])]


@pytest.fixture
def bundle(tmp_path):
    return tiny_tflite.make_bundle_with_both(tmp_path / "bundle")


@pytest.fixture(params=["onnx", *HAVE])
def end(request, bundle, monkeypatch):
    """The tiny end model in every engine that is installed."""
    name = "onnx" if request.param == "onnx" else "tflite"
    monkeypatch.setattr(tflite_module, "INTERPRETERS", (request.param,))
    file = next(f for f in bundle.end_files() if f.engine == name)
    model = EndModel(load_engine(bundle, file, 2), file)
    yield model
    model.close()


def plain(red: int, green: int, blue: int) -> np.ndarray:
    return np.full((tiny.SIZE, tiny.SIZE, 3), (red, green, blue), np.uint8)


def noise(n: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (n, tiny.SIZE, tiny.SIZE, 3), np.uint8)


@pytest.mark.parametrize(
    ("pixels", "label"),
    [(plain(255, 0, 0), 0), (plain(0, 255, 0), 1), (plain(0, 0, 255), 2)],
)
def test_end_model_knows_red_green_and_blue(end, pixels, label):
    out = end.infer(pixels)
    assert out.logits.dtype == np.float32
    assert out.logits.shape == (3,)
    assert out.logits.argmax() == label
    assert out.features.dtype == np.int8
    assert out.features.shape == end.feature_spec.shape


def test_logits_are_dequantized_to_float32(end):
    # 200 averages to 200 in every channel; the model's gain is 0.05, LOGITS.scale 0.0625
    np.testing.assert_allclose(end.infer(plain(200, 100, 0)).logits, [10, 5, 0], atol=0.07)


def test_engines_agree_on_features(bundle):
    onnx, tflite = (
        EndModel(load_engine(bundle, f, 1), f)
        for f in sorted(bundle.end_files(), key=lambda f: f.engine)
    )
    for pixels in noise(20):
        want = onnx.infer(pixels).features
        have = to_layout(tflite.infer(pixels).features[None], "NHWC", "NCHW")[0]
        assert np.abs(want.astype(int) - have.astype(int)).max() <= 1


def test_batch_keeps_order_and_length(end):
    spec = end.engine.inputs["image"]
    images = noise(5)
    batch = to_layout(images, "NHWC", spec.layout)
    out = end.engine.run({"image": batch})
    for i, pixels in enumerate(images):
        np.testing.assert_array_equal(out["features"][i], end.infer(pixels).features)
    assert len(out["logits"]) == 5


def test_output_is_unchanged_by_the_next_frame(end):
    first = end.infer(plain(255, 0, 0))
    kept = first.features.copy()
    end.infer(plain(0, 0, 255))
    np.testing.assert_array_equal(first.features, kept)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {"image": x.astype(np.float64)},
        lambda x: {"image": x[:, :2]},
        lambda x: {"image": x[:0]},
        lambda x: {"picture": x},
        lambda x: {"image": x, "more": x},
        lambda x: {},
    ],
)
def test_wrong_input_is_refused_before_native_code(end, change):
    spec = end.engine.inputs["image"]
    good = np.zeros((1, *spec.shape), spec.dtype)
    with pytest.raises(EngineError):
        end.engine.run(change(good))
    assert end.engine.run({"image": good})["logits"].shape == (1, 3)


def test_closed_engine_refuses_to_run(end):
    end.close()
    with pytest.raises(EngineError, match="closed"):
        end.infer(plain(0, 0, 0))


def test_frame_of_wrong_size_is_refused(end):
    with pytest.raises(EngineError, match=r"\(16, 16, 3\)"):
        end.infer(np.zeros((8, 8, 3), np.uint8))


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x00" * 4096])
@pytest.mark.parametrize("kind", ["onnx", "tflite"])
def test_damaged_file_is_one_sentence(bundle, kind, content):
    file = next(f for f in bundle.end_files() if f.engine == kind)
    bundle.path(file).write_bytes(content)
    with pytest.raises(EngineError) as info:
        load_engine(bundle, file, 1)
    assert str(bundle.path(file)) in str(info.value)


@pytest.mark.parametrize("kind", ["onnx", "tflite"])
@pytest.mark.parametrize(
    "change", [{"name": "feats"}, {"dtype": "uint8"}, {"shape": (3, 4, 5)}, {"shape": (4, 3, 3)}]
)
def test_file_that_differs_from_its_entry_is_refused(bundle, kind, change):
    file = next(f for f in bundle.end_files() if f.engine == kind)
    wrong = tuple(replace(s, **change) if s.name == "features" else s for s in file.outputs)
    with pytest.raises(EngineError):
        load_engine(bundle, replace(file, outputs=wrong), 1)


@pytest.mark.parametrize("change", [{"scale": 2.1}, {"zero_point": -63}])
def test_tflite_file_with_another_quantization_is_refused(bundle, change):
    file = next(f for f in bundle.end_files() if f.engine == "tflite")
    wrong = tuple(replace(s, **change) if s.name == "features" else s for s in file.outputs)
    with pytest.raises(EngineError, match="scale"):
        load_engine(bundle, replace(file, outputs=wrong), 1)


def test_unknown_engine_and_zero_threads_are_refused(bundle):
    file = bundle.end_files()[0]
    with pytest.raises(EngineError, match="update edge-kit"):
        load_engine(bundle, replace(file, engine="abacus"), 1)
    with pytest.raises(EngineError, match="at least one thread"):
        load_engine(bundle, file, 0)


def test_tail_takes_batches(bundle):
    tail = open_tail(bundle, threads=1)
    features = np.random.default_rng(2).integers(-64, 64, (7, 3, 4, 4)).astype(np.int8)
    logits = tail.run({"features": features})["logits"]
    want = (features.astype(np.float32) + 64).mean(axis=(2, 3)) * 2.0 * 0.2
    np.testing.assert_allclose(logits, want, rtol=1e-5)
    assert tail.threads == 1


def test_missing_package_names_the_extra(bundle, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *a: None if name in ("tflite_runtime", "ai_edge_litert") else real(name, *a),
    )
    missing = missing_extra("tflite")
    assert isinstance(missing, MissingExtraError)
    assert "pip install 'edge-kit[tflite]'" in str(missing)
    assert missing_extra("onnx") is None


def test_tflite_without_interpreter_names_the_extra(bundle, monkeypatch):
    monkeypatch.setattr(tflite_module, "INTERPRETERS", ("no_such_package.interpreter",))
    file = next(f for f in bundle.end_files() if f.engine == "tflite")
    with pytest.raises(MissingExtraError, match=r"edge-kit\[tflite\]"):
        TfliteEngine(bundle.path(file), file, 1)


def test_broken_interpreter_is_named_and_the_next_one_tried(bundle, monkeypatch, tmp_path):
    (tmp_path / "broken_runtime").mkdir()
    (tmp_path / "broken_runtime" / "__init__.py").write_text("")
    (tmp_path / "broken_runtime" / "interpreter.py").write_text(
        "raise AttributeError('_ARRAY_API not found')"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    file = next(f for f in bundle.end_files() if f.engine == "tflite")
    monkeypatch.setattr(tflite_module, "INTERPRETERS", ("broken_runtime.interpreter",))
    with pytest.raises(EngineError, match="_ARRAY_API") as info:
        TfliteEngine(bundle.path(file), file, 1)
    assert "numpy<2" in info.value.hint
    monkeypatch.setattr(tflite_module, "INTERPRETERS", ("broken_runtime.interpreter", *HAVE))
    TfliteEngine(bundle.path(file), file, 1).close()


def test_missing_onnxruntime_names_the_extra(bundle, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    file = bundle.end_files()[0]
    with pytest.raises(MissingExtraError, match=r"edge-kit\[onnx\]"):
        OnnxEngine(bundle.path(file), file, 1)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float32"])
def test_pixels_are_converted_to_layout_and_dtype_of_the_input(bundle, layout, dtype):
    height, width = 2, 5
    shape = (3, height, width) if layout == "NCHW" else (height, width, 3)
    image = TensorSpec("image", shape, layout, dtype)
    seen = []

    def call(tensors):
        seen.append(tensors["image"].copy())
        n = np.zeros((1, *tiny.FEATURES.shape), np.int8), np.zeros((1, 3), np.float32)
        return {"features": n[0], "logits": n[1]}

    outputs = {"features": tiny.FEATURES, "logits": tiny.LOGITS}
    model = EndModel(FakeEngine({"image": image}, outputs, call), bundle.end_files()[0])
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)
    pixels[0, 0] = (0, 127, 255)
    for view in (pixels, pixels[:, ::-1], np.asfortranarray(pixels)):
        model.infer(view)
        want = view.astype(np.int64) - (128 if dtype == "int8" else 0)
        have = seen[-1]
        assert have.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(to_layout(have, layout, "NHWC")[0], want)


def test_cloud_half_is_refused_as_end_model(bundle):
    tail = bundle.tail_file()
    with pytest.raises(EngineError, match="not one image"):
        EndModel(load_engine(bundle, tail, 1), tail)


def test_tflite_fixture_is_what_its_builder_makes():
    pytest.importorskip("ai_edge_litert.schema_py_generated")
    pytest.importorskip("flatbuffers")
    assert tiny_tflite.FILE.read_bytes() == tiny_tflite.build()
