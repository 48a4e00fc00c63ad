"""Repairs of a TFLite file: exact scales, short names, shared vectors, the same answers."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from edge_kit.errors import ExportError
from exporters.engines.tflite_file import requirements, tidy
from tests.support import tiny_tflite

pytestmark = pytest.mark.export

CONTENT = tiny_tflite.FILE.read_bytes()
FEATURES = (tiny_tflite.FEATURES_NHWC.scale, tiny_tflite.FEATURES_NHWC.zero_point)
FIXED = {"image": (1.0, 0), "features": FEATURES}


def run(content: bytes, pixels: np.ndarray) -> dict[str, np.ndarray]:
    runner = Interpreter(model_content=content).get_signature_runner()
    return {k: np.array(v) for k, v in runner(image=pixels).items()}


def unpacked(content: bytes):
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))


def packed(model) -> bytes:
    import flatbuffers

    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def picture(seed: int) -> np.ndarray:
    shape = (1, *tiny_tflite.IMAGE.shape)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def test_requirements_list_schema_and_highest_version_of_each_operator():
    assert requirements(tiny_tflite.FILE) == {
        "tflite_schema": 3,
        "ops": {"AVERAGE_POOL_2D": 2, "FULLY_CONNECTED": 4, "MEAN": 2, "QUANTIZE": 2},
    }


def test_requirements_read_operator_from_old_byte_field(tmp_path):
    model = unpacked(CONTENT)
    for code in model.operatorCodes:
        code.builtinCode = 0
    (tmp_path / "old.tflite").write_bytes(packed(model))
    assert requirements(tmp_path / "old.tflite") == requirements(tiny_tflite.FILE)


@pytest.mark.parametrize("seed", range(3))
def test_tidied_file_gives_equal_answers(seed):
    before, after = run(CONTENT, picture(seed)), run(tidy(CONTENT, FIXED), picture(seed))
    assert before.keys() == after.keys() == {"features", "logits"}
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)


def test_tidied_file_names_inner_tensors_briefly_and_outer_ones_by_signature():
    (graph,) = unpacked(tidy(CONTENT, FIXED)).subgraphs
    names = [t.name.decode() for t in graph.tensors]
    assert {"image", "features", "logits"} <= set(names)
    assert all(n.startswith("t") and n[1:].isdigit() for n in names[1:-1] if n not in FIXED)
    assert len(names) == len(set(names))


def test_scale_off_by_rounding_becomes_exact():
    wanted = FEATURES[0] * (1 + 4e-6)
    (graph,) = unpacked(tidy(CONTENT, {"features": (wanted, FEATURES[1])})).subgraphs
    (tensor,) = (t for t in graph.tensors if t.name == b"features")
    assert float(tensor.quantization.scale[0]) == float(np.float32(wanted))


@pytest.mark.parametrize(
    "fixed", [(FEATURES[0] * 1.01, FEATURES[1]), (FEATURES[0], FEATURES[1] + 1)]
)
def test_scale_or_zero_point_that_differs_is_refused(fixed):
    with pytest.raises(ExportError, match=f"features came out .* {fixed[0]:.6g} and {fixed[1]}"):
        tidy(CONTENT, {"features": fixed})


def test_equal_vectors_are_stored_once():
    model = unpacked(CONTENT)
    (graph,) = model.subgraphs
    for tensor in graph.tensors:
        if tensor.quantization is not None:
            tensor.quantization.zeroPoint = np.zeros(500, np.int64)
    large = packed(model)
    before = sum(t.quantization is not None for t in graph.tensors)
    shared = tidy(large, {})
    assert before > 3
    assert len(large) - len(shared) > (before - 1) * 500 * 8


def test_constants_lie_on_sixteen_byte_boundaries():
    content = tidy(CONTENT, FIXED)
    model = schema.Model.GetRootAs(content, 0)
    start = np.frombuffer(content, np.uint8).__array_interface__["data"][0]
    constants = [model.Buffers(k).DataAsNumpy() for k in range(model.BuffersLength())]
    places = [c.__array_interface__["data"][0] - start for c in constants if np.size(c) > 1]
    assert places
    assert [place % 16 for place in places] == [0] * len(places)


def test_constants_behind_the_flatbuffer_are_brought_in():
    """Large models keep their constants there, at an offset from the start of the file."""
    model = unpacked(CONTENT)
    moved = [b for b in model.buffers if b.data is not None and len(b.data)]
    data = [bytes(bytearray(b.data)) for b in moved]
    for buffer, content in zip(moved, data, strict=True):
        buffer.data, buffer.size, buffer.offset = None, len(content), 2
    start = len(packed(model))  # offsets are of fixed width, so the length stays
    for buffer, content in zip(moved, data, strict=True):
        buffer.offset, start = start, start + len(content)
    content = packed(model) + b"".join(data)
    after = run(tidy(content, FIXED), picture(0))
    for name, values in run(CONTENT, picture(0)).items():
        np.testing.assert_array_equal(after[name], values)
