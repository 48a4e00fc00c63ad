from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edge_kit.records import from_json, to_json
from edge_kit.tensors import DTYPES, LAYOUTS, TensorSpec, dequantize, quantize, to_layout

INT_SPEC = st.builds(
    lambda dtype, scale, zero: TensorSpec("x", (4,), "NC", dtype, scale, zero),
    st.sampled_from(["int8", "uint8"]),
    st.floats(2**-10, 64, width=32),
    st.integers(0, 127),
)


def test_size_and_bytes_follow_from_shape_and_dtype():
    spec = TensorSpec("x", (3, 4, 5), "NCHW", "float32")
    assert spec.size == 60
    assert spec.nbytes == 240


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"layout": "NHW"}, "layout"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"shape": (3, 4)}, "shape"),
        ({"shape": (3, 0, 4)}, "shape"),
        ({"scale": 0.0}, "scale"),
        ({"scale": -1.0}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"scale": float("inf")}, "scale"),
    ],
)
def test_invalid_spec_is_refused_with_the_reason(change, word):
    good = {"name": "x", "shape": (3, 4, 5), "layout": "NCHW", "dtype": "int8", "scale": 0.5}
    with pytest.raises(ValueError, match=word):
        TensorSpec(**(good | change))


@given(
    st.sampled_from([(layout, n) for layout, n in zip(LAYOUTS, (3, 3, 1), strict=True)]),
    st.sampled_from(DTYPES),
    st.floats(1e-6, 1e6),
    st.integers(-128, 255),
    st.data(),
)
def test_spec_survives_json_with_unknown_keys(layout, dtype, scale, zero, data):
    shape = tuple(data.draw(st.lists(st.integers(1, 99), min_size=layout[1], max_size=layout[1])))
    spec = TensorSpec("f", shape, layout[0], dtype, scale, zero)
    assert from_json(TensorSpec, to_json(spec) | {"later": True}) == spec


@given(INT_SPEC)
def test_every_code_survives_dequantize_then_quantize(spec):
    info = np.iinfo(spec.dtype)
    codes = np.arange(info.min, info.max + 1).astype(spec.dtype)
    assert np.array_equal(quantize(dequantize(codes, spec), spec), codes)


@given(INT_SPEC, hnp.arrays(np.float32, 16, elements=st.floats(-1e6, 1e6, width=32)))
def test_quantize_saturates_and_errs_by_at_most_half_a_step(spec, values):
    info = np.iinfo(spec.dtype)
    low, high = (dequantize(np.array(v, spec.dtype), spec) for v in (info.min, info.max))
    back = dequantize(quantize(values, spec), spec)
    off = np.abs(back - np.clip(values, low, high))
    assert off.max() <= spec.scale * 0.5 * 1.001


def test_quantize_rounds_half_to_even():
    spec = TensorSpec("x", (4,), "NC", "int8")
    assert quantize(np.float32([0.5, 1.5, -0.5, 2.5]), spec).tolist() == [0, 2, 0, 2]


def test_quantize_saturates_at_the_ends_of_int32():
    spec = TensorSpec("x", (2,), "NC", "int32")
    ends = quantize(np.float32([1e12, -1e12]), spec)
    assert ends.tolist() == [2**31 - 1, -(2**31)]


def test_dequantize_returns_floats_unchanged():
    spec = TensorSpec("x", (2,), "NC", "float16", 3.0, 1)
    values = dequantize(np.float16([1.5, -2.0]), spec)
    assert values.dtype == np.float32
    assert values.tolist() == [1.5, -2.0]


def test_transpose_to_layout_and_back_is_identity():
    nchw = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    nhwc = to_layout(nchw, "NCHW", "NHWC")
    assert nhwc.shape == (2, 4, 5, 3)
    assert nhwc[1, 2, 3, 0] == nchw[1, 0, 2, 3]
    assert nhwc.flags.c_contiguous
    assert np.array_equal(to_layout(nhwc, "NHWC", "NCHW"), nchw)
    assert to_layout(nchw, "NCHW", "NCHW") is nchw


def test_unknown_transpose_is_refused():
    with pytest.raises(ValueError, match="NC to NHWC"):
        to_layout(np.zeros((1, 3)), "NC", "NHWC")
