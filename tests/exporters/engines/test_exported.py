"""An exported file: its line in the manifest, and running it for parity checks."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from edge_kit.engines.image_input import image_batch  # noqa: E402
from edge_kit.tensors import TensorSpec  # noqa: E402
from exporters.engines.exported import describe  # noqa: E402
from exporters.engines.onnx_export import export_full, trace_to_onnx  # noqa: E402
from tests.support.export.tiny_halves import SIZE, photos  # noqa: E402

pytestmark = pytest.mark.export

PIXELS, _ = photos(70, seed=5)


def image(dtype: str, layout: str = "NHWC") -> TensorSpec:
    shape = (32, 32, 3) if layout == "NHWC" else (3, 32, 32)
    return TensorSpec("image", shape, layout, dtype)


def test_image_batch_for_uint8_input_are_the_pixels():
    np.testing.assert_array_equal(image_batch(PIXELS, image("uint8")), PIXELS)


def test_image_batch_for_int8_input_are_128_less():
    given = image_batch(PIXELS, image("int8"))
    assert given.dtype == np.int8
    np.testing.assert_array_equal(given.astype(int), PIXELS.astype(int) - 128)


def test_image_batch_for_int8_cover_all_256_levels():
    levels = np.arange(256, dtype=np.uint8).reshape(1, 16, 16, 1)
    spec = TensorSpec("image", (16, 16, 1), "NHWC", "int8")
    assert image_batch(levels, spec).ravel().tolist() == list(range(-128, 128))


def test_image_batch_for_float_nchw_input_are_transposed():
    given = image_batch(PIXELS, image("float32", "NCHW"))
    assert given.dtype == np.float32
    np.testing.assert_array_equal(given, PIXELS.transpose(0, 3, 1, 2))


def write(tmp_path, model: nn.Module, *, role: str, given: TensorSpec, made: TensorSpec):
    path = tmp_path / f"{role}.onnx"
    sample = torch.zeros(1, *given.shape)
    trace_to_onnx(model.eval(), sample, path, inputs=(given.name,), outputs=(made.name,))
    return describe(
        path,
        role=role,
        engine="onnx",
        arch="any",
        inputs=(given,),
        outputs=(made,),
        requires={"opset": 17},
    )


@pytest.mark.parametrize(("role", "folder"), [("end", "end"), ("tail", "cloud"), ("full", "cloud")])
def test_describe_hashes_file_and_places_it_by_role(tmp_path, role, folder):
    logits = TensorSpec("logits", (3072,), "NC", "float32")
    file = write(tmp_path, nn.Flatten(), role=role, given=image("float32", "NCHW"), made=logits)
    content = file.source.read_bytes()
    entry = file.entry
    assert entry.path == f"{folder}/{role}.onnx"
    assert entry.sha256 == hashlib.sha256(content).hexdigest()
    assert entry.size == len(content)
    assert (entry.role, entry.engine, entry.arch) == (role, "onnx", "any")


def test_figures_are_merged_into_a_copy(tmp_path):
    logits = TensorSpec("logits", (3072,), "NC", "float32")
    file = write(tmp_path, nn.Flatten(), role="end", given=image("float32", "NCHW"), made=logits)
    first = file.with_figures(top1=0.5, scheme="U8S8")
    second = first.with_figures(top1=0.75)
    assert file.entry.figures == {}
    assert first.entry.figures == {"top1": 0.5, "scheme": "U8S8"}
    assert second.entry.figures == {"top1": 0.75, "scheme": "U8S8"}


def test_integer_logits_come_out_dequantized(tmp_path):
    class Codes(nn.Module):
        def forward(self, x):
            return x.flatten(1).to(torch.int32)

    logits = TensorSpec("logits", (3072,), "NC", "int32", 0.5, 10)
    file = write(tmp_path, Codes(), role="end", given=image("float32", "NCHW"), made=logits)
    codes = PIXELS.transpose(0, 3, 1, 2).reshape(70, -1)
    np.testing.assert_array_equal(file(PIXELS)["logits"], (codes - np.float32(10)) * 0.5)


def test_more_samples_than_one_batch_keep_order(tmp_path):
    full = export_full(
        nn.Sequential(nn.AvgPool2d(32), nn.Flatten()), tmp_path / "f.onnx", size=SIZE
    )
    np.testing.assert_allclose(
        full(PIXELS)["logits"], PIXELS.mean((1, 2), dtype=np.float64), rtol=1e-4
    )


def test_features_of_nhwc_file_come_out_as_nchw(tmp_path):
    class Channels(nn.Module):
        def forward(self, x):
            return x.permute(0, 2, 3, 1) * 2

    made = TensorSpec("features", (32, 32, 3), "NHWC", "float32")
    file = write(tmp_path, Channels(), role="end", given=image("float32", "NCHW"), made=made)
    np.testing.assert_array_equal(file(PIXELS)["features"], 2.0 * PIXELS.transpose(0, 3, 1, 2))
