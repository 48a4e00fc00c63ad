"""A compacted file computes the same in fewer bytes."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from exporters.engines.compact import compact

pytestmark = pytest.mark.export

VALUE, FLOAT = helper.make_tensor_value_info, onnx.TensorProto.FLOAT


def model(outputs: tuple[str, ...] = ("answer",)) -> onnx.ModelProto:
    """Two additions of equal constants, names that people read, and what nobody reads."""
    three = np.array([3.0], np.float32)
    constants = {
        "a_very_long_constant_name": three,
        "the_same_bytes_again": three.copy(),
        "another_value": np.array([5.0], np.float32),
        "same_bytes_other_type": three.view(np.int32).copy(),
        "never_read": np.zeros(1000, np.float32),
    }
    nodes = [
        helper.make_node("Add", ["image", "a_very_long_constant_name"], ["layer/one/out"], "one"),
        helper.make_node("Mul", ["layer/one/out", "the_same_bytes_again"], ["layer/two/out"]),
        helper.make_node("Cast", ["same_bytes_other_type"], ["cast"], to=FLOAT),
        helper.make_node("Sub", ["layer/two/out", "another_value"], ["layer/three/out"]),
        helper.make_node("Add", ["layer/three/out", "cast"], [outputs[0]]),
    ]
    for extra in outputs[1:]:
        nodes.append(helper.make_node("Identity", ["layer/one/out"], [extra]))
    nodes[0].doc_string = "traced from line 12"
    nodes[0].metadata_props.add(key="module", value="a.b.c")
    stored = [numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = helper.make_graph(
        nodes,
        "torch_jit",
        [VALUE("image", FLOAT, ["n"])],
        [VALUE(name, FLOAT, ["n"]) for name in outputs],
        stored,
        doc_string="a graph",
        value_info=[VALUE("layer/one/out", FLOAT, ["n"])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, doc_string="a model")


def run(made: onnx.ModelProto) -> list[np.ndarray]:
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"image": np.arange(4, dtype=np.float32)})


@pytest.fixture
def compacted() -> onnx.ModelProto:
    made = model()
    compact(made)
    onnx.checker.check_model(made)
    return made


def test_compacted_model_gives_equal_outputs(compacted):
    np.testing.assert_array_equal(run(compacted)[0], run(model())[0])


def test_equal_constants_are_stored_once_and_unread_ones_dropped(compacted):
    values = [numpy_helper.to_array(i) for i in compacted.graph.initializer]
    assert len(values) == 3
    assert sorted(v.dtype.name for v in values) == ["float32", "float32", "int32"]
    assert compacted.graph.node[0].input[1] == compacted.graph.node[1].input[1]
    assert compacted.graph.node[0].input[1] != compacted.graph.node[3].input[1]


def test_inner_names_are_short_and_outer_ones_kept(compacted):
    graph = compacted.graph
    assert [v.name for v in (*graph.input, *graph.output)] == ["image", "answer"]
    inner = {n for node in graph.node for n in (*node.input, *node.output)} - {"image", "answer"}
    assert inner
    assert max(len(name) for name in inner) == 2


def test_text_for_people_is_dropped(compacted):
    content = compacted.SerializeToString()
    for text in (b"traced from", b"a.b.c", b"a graph", b"a model", b"layer/", b"torch_jit"):
        assert text not in content
    assert not compacted.graph.value_info


def test_opset_of_unused_domain_is_dropped(compacted):
    assert [(o.domain, o.version) for o in compacted.opset_import] == [("", 17)]


def test_output_with_short_name_keeps_its_own_tensor():
    """Short names count up from t0, which an output may already have."""
    outputs = ("t0", "t1")
    before = run(model(outputs))
    made = model(outputs)
    compact(made)
    onnx.checker.check_model(made)
    for after, expected in zip(run(made), before, strict=True):
        np.testing.assert_array_equal(after, expected)


def test_left_out_input_stays_left_out():
    nodes = [helper.make_node("Clip", ["image", "", "highest"], ["answer"])]
    highest = numpy_helper.from_array(np.array(2.0, np.float32), "highest")
    graph = helper.make_graph(
        nodes, "g", [VALUE("image", FLOAT, ["n"])], [VALUE("answer", FLOAT, ["n"])], [highest]
    )
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=8)
    compact(made)
    assert run(made)[0].tolist() == [0.0, 1.0, 2.0, 2.0]


def test_more_than_thirty_six_tensors_get_distinct_names():
    names = ["image", *(f"step/{k}" for k in range(60)), "answer"]
    nodes = [helper.make_node("Neg", [a], [b]) for a, b in itertools.pairwise(names)]
    graph = helper.make_graph(
        nodes, "g", [VALUE("image", FLOAT, ["n"])], [VALUE("answer", FLOAT, ["n"])]
    )
    opset = [helper.make_opsetid("", 17)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=8)
    compact(made)
    assert len({n.output[0] for n in made.graph.node}) == 61
    assert run(made)[0].tolist() == [-0.0, -1.0, -2.0, -3.0]
