"""Float islands: none in a quantized file, each planted one is found and named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

torch = pytest.importorskip("torch")

from onnx import helper, numpy_helper  # noqa: E402

from edge_kit.errors import ExportError  # noqa: E402
from exporters.engines.islands import MAX_NAMED, assert_all_int8, float_islands  # noqa: E402
from exporters.engines.onnx_export import export_end_float  # noqa: E402
from exporters.engines.onnx_quant import SCHEMES, export_end_onnx  # noqa: E402
from tests.support import tiny_tflite  # noqa: E402
from tests.support.export.tiny_halves import SIZE, photos, trained  # noqa: E402

pytestmark = pytest.mark.export

CALIBRATION, _ = photos(16, seed=4)


@pytest.fixture(scope="module", params=sorted(SCHEMES))
def sound(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("islands") / "end.onnx"
    export_end_onnx(trained().end, CALIBRATION, path, arch=request.param)
    return path


def planted(sound: Path, *operations: str) -> Path:
    """Let the features pass float operations on their way to the head."""
    model = onnx.load(sound)
    graph = model.graph
    quantizer = next(n for n in graph.node if n.op_type == "QuantizeLinear")
    names = [quantizer.input[0], *(f"odd{k}" for k in range(len(operations)))]
    place = list(graph.node).index(quantizer)
    for k, operation in enumerate(operations):
        node = helper.make_node(operation, [names[k]], [names[k + 1]], name=f"planted{k}")
        graph.node.insert(place + k, node)
    quantizer.input[0] = names[-1]
    path = sound.with_name("planted.onnx")
    onnx.save(model, path)
    return path


def test_quantized_file_has_no_islands(sound):
    assert float_islands(sound) == []
    assert_all_int8(sound)


@pytest.mark.parametrize("operation", ["Sin", "Erf", "Softplus"])
def test_planted_float_operation_is_found_by_name(sound, operation):
    found = float_islands(planted(sound, operation))
    assert f"{operation} (planted0)" in found


def test_many_islands_name_five_and_count_rest(sound):
    path = planted(sound, *["Sin"] * (MAX_NAMED + 3))
    count = len(float_islands(path))
    assert count >= MAX_NAMED + 3
    with pytest.raises(ExportError, match=f"and {count - MAX_NAMED} more; cut before") as caught:
        assert_all_int8(path)
    assert caught.value.what.count("(planted") <= MAX_NAMED
    assert caught.value.what.startswith("planted.onnx would compute in float: ")


def test_float_model_is_reported_as_islands(tmp_path):
    twin = export_end_float(trained().end, tmp_path / "twin.onnx", size=SIZE)
    assert any(name.startswith(("Conv", "FusedConv")) for name in float_islands(twin.source))
    with pytest.raises(ExportError, match="more; cut before the layer"):
        assert_all_int8(twin.source)


def test_dequantized_logits_alone_are_no_island(tmp_path):
    value, float32 = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"])],
        "g",
        [value("x", onnx.TensorProto.INT8, [1, 4])],
        [value("y", float32, [1, 4])],
        [
            numpy_helper.from_array(np.array(0.5, np.float32), "s"),
            numpy_helper.from_array(np.array(3, np.int8), "z"),
        ],
    )
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    assert float_islands(tmp_path / "m.onnx") == []


def test_tflite_tensor_that_is_not_int8_or_int32_is_found(tmp_path):
    pytest.importorskip("ai_edge_litert")
    (tmp_path / "m.tflite").write_bytes(tiny_tflite.FILE.read_bytes())
    assert float_islands(tmp_path / "m.tflite") == ["serving_default_image:0 (uint8)"]
    with pytest.raises(ExportError, match=r"m\.tflite would compute in float: serving_default"):
        assert_all_int8(tmp_path / "m.tflite")
