"""The end model as full int8 ONNX: quantize and dequantize nodes (QDQ) that ORT fuses to integers.

Per architecture, because the int8 kernels differ (DESIGN.md, "Engines"):

- ``x86_64``: uint8 activations, int8 weights in ranges whose sums do not saturate on CPUs without
  VNNI (`exporters.engines.saturation`). uint8 weights would not saturate either, but such files
  ran 20 times slower.
- ``aarch64``: int8 activations and weights, what its dot-product instructions take. On x86 such a
  file runs in float unless the session sets ``session.qdqisint8allowed``.

Scales and weights are the same in both, and zero points differ by 128: the files give the same
bits, so that a threshold found on a PC decides on a board as it did there.

Pixels enter as they are (uint8, or pixel - 128 as int8) and features leave as int8 whatever the
architecture, with exactly the scale that the message announces and zero point 0.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from edge_kit.tensors import TensorSpec
from exporters.engines.compact import compact
from exporters.engines.exported import Exported
from exporters.engines.islands import assert_all_int8
from exporters.engines.onnx_export import describe_onnx, trace_to_onnx
from exporters.engines.pixel_input import IntegerEnd, PixelInput, pixel_input
from exporters.engines.saturation import unsaturated_ranges

if TYPE_CHECKING:
    from exporters.graph.halves import EndModel

__all__ = ["SCHEMES", "export_end_onnx"]

BATCH = 16


# What the manifest calls them: activations, then weights, as the literature writes it.
SCHEMES = {"x86_64": "U8S8-paired", "aarch64": "S8S8-paired"}


def export_end_onnx(
    end: EndModel,
    calibration: NDArray[np.uint8],
    path: Path,
    *,
    arch: str,
    feature_scale: float | None = None,
) -> Exported:
    """Quantize an end model for one architecture.

    Args:
        end: The trained end model.
        calibration: uint8 pixels (N, height, width, 3) of the calibration split; about 200
            photos settle the ranges. Their minimum and maximum are the ranges.
        path: Where to write.
        arch: ``x86_64`` or ``aarch64``.
        feature_scale: Quantization step of the features; by default the end model's own.

    Returns:
        A file that takes ``image`` (any batch) and gives ``features`` (int8) and ``logits``
        (float32).

    Raises:
        ExportError: The model cannot be exported, or a part of it would compute in float.
    """
    signed = arch == "aarch64"
    scale = float(np.float32(end.feature_scale if feature_scale is None else feature_scale))
    pixels = pixel_input(end.normalize)
    size = (int(calibration.shape[1]), int(calibration.shape[2]))
    with tempfile.TemporaryDirectory(prefix="edge-kit-quantize-") as work:
        plain = Path(work) / "float.onnx"
        sample = torch.zeros(1, calibration.shape[3], *size)
        graph = IntegerEnd(end, pixels)
        trace_to_onnx(graph, sample, plain, outputs=("features", "logits"))
        with torch.no_grad():
            features, logits = graph.eval()(sample)
        quantized = Path(work) / "int8.onnx"
        _quantize(plain, quantized, calibration, pixels, scale, signed=signed)
        model = onnx.load(quantized)
        _drop_input_quantizer(model.graph, signed=signed)
        _emit_int8_features(model.graph)
        onnx.checker.check_model(model)
        legible = Path(work) / path.name
        onnx.save(model, legible)
        assert_all_int8(legible)  # while nodes still have the layers' names
    compact(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return describe_onnx(
        path,
        "end",
        TensorSpec(
            "image",
            (int(calibration.shape[3]), *size),
            "NCHW",
            "int8" if signed else "uint8",
            pixels.scale,
            pixels.zero_point - (128 if signed else 0),
        ),
        TensorSpec("features", tuple(features.shape[1:]), "NCHW", "int8", scale, 0),
        TensorSpec("logits", tuple(logits.shape[1:]), "NC", "float32"),
        arch=arch,
    ).with_figures(scheme=SCHEMES[arch])


def _quantize(
    plain: Path,
    out: Path,
    calibration: NDArray[np.uint8],
    pixels: PixelInput,
    feature_scale: float,
    *,
    signed: bool,
) -> None:
    from onnxruntime.quantization import (  # type: ignore[import-untyped]
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import (  # type: ignore[import-untyped]
        quant_pre_process,
    )

    activations = QuantType.QInt8 if signed else QuantType.QUInt8
    shift = 128 if signed else 0
    prepared = plain.with_name("prepared.onnx")
    quant_pre_process(os.fspath(plain), os.fspath(prepared), skip_symbolic_shape=True)
    overrides: dict[str, list[dict[str, Any]]] = {
        "image": [_fixed(activations, pixels.scale, pixels.zero_point - shift, signed=signed)],
        "features": [_fixed(activations, feature_scale, 128 - shift, signed=signed)],
    }
    overrides.update(unsaturated_ranges(prepared))
    quantize_static(
        os.fspath(prepared),
        os.fspath(out),
        _Reader(calibration, pixels),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=activations,
        weight_type=QuantType.QInt8,
        calibrate_method=CalibrationMethod.MinMax,
        extra_options={"TensorQuantOverrides": overrides},
    )


def _fixed(kind: Any, scale: float, zero_point: int, *, signed: bool) -> dict[str, Any]:
    stored = np.array(zero_point, np.int8 if signed else np.uint8)
    return {"quant_type": kind, "scale": np.array(scale, np.float32), "zero_point": stored}


class _Reader:
    """Calibration batches in the form that onnxruntime asks for."""

    def __init__(self, calibration: NDArray[np.uint8], pixels: PixelInput) -> None:
        batches = (calibration[i : i + BATCH] for i in range(0, len(calibration), BATCH))
        self._batches = (
            {"image": pixels.real(np.ascontiguousarray(b.transpose(0, 3, 1, 2)))} for b in batches
        )

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        """Return the next batch, None after the last."""
        return next(self._batches, None)


def _drop_input_quantizer(graph: onnx.GraphProto, *, signed: bool) -> None:
    """Let the quantized pixels be the input."""
    (quantizer,) = [n for n in graph.node if "image" in n.input]
    _rename(graph, quantizer.output[0], "image")
    graph.node.remove(quantizer)
    kind = onnx.TensorProto.INT8 if signed else onnx.TensorProto.UINT8
    graph.input[0].type.tensor_type.elem_type = kind


def _emit_int8_features(graph: onnx.GraphProto) -> None:
    """Let ``features`` be integers: int8 with zero point 0 whatever the activations are.

    uint8 activations carry features as uint8 with zero point 128 and the same scale; the head
    reads those, and a dequantize-quantize pair, exact because both have one scale, shifts the
    copy that leaves.
    """
    real = "features_real"
    (dequantizer,) = [n for n in graph.node if "features" in n.output]
    stored = dequantizer.input[0]
    _rename(graph, "features", real)
    constants = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
    if constants[dequantizer.input[2]].dtype == np.int8:
        _rename(graph, stored, "features")
    else:
        zero = numpy_helper.from_array(np.array(0, np.int8), "emitted_features_zero_point")
        graph.initializer.append(zero)
        graph.node.extend(
            [
                helper.make_node(
                    "DequantizeLinear", [stored, *dequantizer.input[1:]], ["features_shifted"]
                ),
                helper.make_node(
                    "QuantizeLinear",
                    ["features_shifted", dequantizer.input[1], zero.name],
                    ["features"],
                ),
            ]
        )
    if not any(real in n.input for n in graph.node):
        graph.node.remove(dequantizer)
    output = next(v for v in graph.output if v.name == "features")
    output.type.tensor_type.elem_type = onnx.TensorProto.INT8


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
