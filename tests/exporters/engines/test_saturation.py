"""Weight ranges that keep int16 sums of x86 kernels from saturating, in hand-computed cases."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import helper, numpy_helper

from exporters.engines.saturation import paired_bound, unsaturated_ranges

pytestmark = pytest.mark.export

INT16 = 2**15 - 1


def madd(weights: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """PMADDUBSW: uint8 times int8, neighbours added in int16 with saturation."""
    pairs = (pixels.astype(int) * weights.astype(int)).reshape(*weights.shape[:-1], -1, 2).sum(-1)
    return np.clip(pairs, -INT16 - 1, INT16)


def quantized(weights: np.ndarray) -> np.ndarray:
    bound = np.maximum(paired_bound(weights), 1e-6)
    return np.rint(weights / (bound.reshape(-1, *[1] * (weights.ndim - 1)) / 127)).astype(int)


def neighbour_sums(weights: np.ndarray) -> int:
    """Largest sum of two neighbours of one sign along the reduction, in either packing order."""
    worst = 0
    for order in (weights, np.moveaxis(weights, 1, -1)):
        rows = order.reshape(len(weights), -1).astype(int)
        rows = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2))).reshape(len(weights), -1, 2)
        for sign in (rows, -rows):
            worst = max(worst, int(np.maximum(sign, 0).sum(2).max()))
    return worst


@pytest.mark.parametrize(
    ("row", "bound"),
    [
        ([1.0, 1.0, 0.0, 0.0], 2.0),  # a pair that would reach 254 of 127
        ([1.0, -1.0, 0.5, 0.0], 1.0),  # signs that cancel need nothing
        ([-0.75, -0.5, 0.0, 0.0], 1.25),
        ([1.0, 0.25, -1.0, -0.5], 1.5),  # the negative pair is the larger one
        ([0.0, 1.0, 1.0, 0.0], 1.0),  # neighbours in two different pairs
        ([0.0, 0.0, 0.0, 0.0], 0.0),
        ([0.5, 0.0, 0.75], 0.75),  # the last of an odd row has no partner
    ],
)
def test_paired_bound_of_one_row_equals_hand_computed(row, bound):
    assert paired_bound(np.array([row], np.float32)).tolist() == [bound]


def test_paired_bound_looks_at_both_packing_orders():
    """Channels first pairs (0, 1); channels last pairs the two channels of one position."""
    weights = np.zeros((1, 2, 1, 2), np.float32)
    weights[0, 0, 0, 0] = weights[0, 1, 0, 0] = 1.0
    assert paired_bound(weights).tolist() == [2.0]


def test_paired_bound_is_per_output_channel():
    weights = np.array([[1.0, 1.0], [0.5, -0.5], [3.0, 0.0]], np.float32)
    assert paired_bound(weights).tolist() == [2.0, 0.5, 3.0]


@settings(max_examples=100, deadline=None)
@given(
    arrays(
        np.float32,
        st.tuples(st.integers(1, 4), st.integers(1, 5), st.just(3), st.just(3)),
        elements=st.floats(-8, 8, width=32),
    )
)
def test_paired_bound_holds_after_rounding(weights):
    codes = quantized(weights)
    assert np.abs(codes).max() <= 127
    assert neighbour_sums(codes) <= 128


def test_brightest_input_saturates_plain_weights_and_not_paired_ones():
    weights = np.array([[1.0, 1.0, -0.9, -1.0, 0.3, 0.2]], np.float32)
    brightest = np.full((1, 6), 255, np.uint8)
    plain = np.rint(weights * 127).astype(int)
    exact = (plain * 255).reshape(1, 3, 2).sum(-1)
    assert (madd(plain, brightest) != exact).any()
    paired = quantized(weights)
    exact = (paired * 255).reshape(1, 3, 2).sum(-1)
    assert (madd(paired, brightest) == exact).all()
    assert exact.max() == 255 * 128  # the limit itself is used


def graph_of(nodes, weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    stored = [numpy_helper.from_array(w.astype(np.float32), k) for k, w in weights.items()]
    graph = helper.make_graph(
        nodes, "g", [value("x", 1, None)], [value("y", 1, None)], initializer=stored
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


RANDOM = np.random.default_rng(0)
DENSE = RANDOM.normal(size=(6, 4, 3, 3))
MATRIX = RANDOM.normal(size=(10, 6))


@pytest.mark.parametrize(
    ("node", "weight", "axis"),
    [
        (helper.make_node("Conv", ["x", "w"], ["y"]), DENSE, 0),
        (helper.make_node("Conv", ["x", "w"], ["y"], group=2), DENSE, 0),
        (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), MATRIX, 0),
        (helper.make_node("Gemm", ["x", "w"], ["y"]), MATRIX, 1),
        (helper.make_node("MatMul", ["x", "w"], ["y"]), MATRIX, 1),
    ],
    ids=["conv", "grouped", "gemm-transposed", "gemm", "matmul"],
)
def test_unsaturated_ranges_follow_output_axis(tmp_path, node, weight, axis):
    onnx.save(graph_of([node], {"w": weight}), tmp_path / "m.onnx")
    found = unsaturated_ranges(tmp_path / "m.onnx")
    assert set(found) == {"w"}
    bounds = paired_bound(np.moveaxis(weight.astype(np.float32), axis, 0))
    assert [r["axis"] for r in found["w"]] == [axis] * weight.shape[axis]
    np.testing.assert_array_equal([r["rmax"] for r in found["w"]], bounds)
    np.testing.assert_array_equal([r["rmin"] for r in found["w"]], -bounds)


def test_unsaturated_ranges_leave_depthwise_and_computed_weights_out(tmp_path):
    nodes = [
        helper.make_node("Conv", ["x", "deep"], ["a"], group=6),
        helper.make_node("Relu", ["plain"], ["computed"]),
        helper.make_node("MatMul", ["a", "computed"], ["y"]),
    ]
    weights = {"deep": RANDOM.normal(size=(6, 1, 3, 3)), "plain": MATRIX}
    onnx.save(graph_of(nodes, weights), tmp_path / "m.onnx")
    assert unsaturated_ranges(tmp_path / "m.onnx") == {}
