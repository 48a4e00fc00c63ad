"""The end model as full int8 TFLite, without TensorFlow: litert-torch, then ai-edge-quantizer.

Ranges are the plain minimum and maximum over the calibration photos: the quantizer's default, a
moving average, clips outliers and cost 19 points of agreement on EfficientNet-Lite0 (DESIGN.md,
"TFLite export"). Image and features get the ranges that make their quantization exactly what the
manifest announces.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from edge_kit.errors import ExportError
from edge_kit.tensors import TensorSpec
from exporters.engines.exported import Exported, describe
from exporters.engines.islands import assert_all_int8
from exporters.engines.pixel_input import IntegerEnd, PixelInput, pixel_input
from exporters.engines.tflite_file import requirements, tidy
from exporters.quiet import quiet

if TYPE_CHECKING:
    from exporters.graph.halves import EndModel

__all__ = ["export_end_tflite"]

INT8_STEPS = 255


def export_end_tflite(
    end: EndModel,
    calibration: NDArray[np.uint8],
    path: Path,
    *,
    feature_scale: float | None = None,
) -> Exported:
    """Quantize an end model for TFLite, any architecture, batch 1.

    Args:
        end: The trained end model.
        calibration: uint8 pixels (N, height, width, 3) of the calibration split.
        path: Where to write.
        feature_scale: Quantization step of the features; by default the end model's own.

    Returns:
        A file that takes ``image`` (int8 NHWC, pixel - 128) and gives ``features`` (int8 NHWC)
        and ``logits`` (int8 with a scale).

    Raises:
        ExportError: The model cannot be converted, or a part of it would compute in float.
    """
    scale = float(np.float32(end.feature_scale if feature_scale is None else feature_scale))
    pixels = pixel_input(end.normalize)
    float_model = _convert(_Graph(end, pixels), calibration[:1])
    fixed = {"image": (pixels.scale, pixels.zero_point - 128), "features": (scale, 0)}
    path.parent.mkdir(parents=True, exist_ok=True)
    quantized = _quantize(float_model, calibration, pixels, fixed)
    path.write_bytes(quantized)
    assert_all_int8(path)  # while tensors still have the layers' names
    path.write_bytes(tidy(quantized, fixed))
    inputs, outputs = _specs(path)
    return describe(
        path,
        role="end",
        engine="tflite",
        arch="any",
        inputs=inputs,
        outputs=outputs,
        requires=requirements(path),
    )


class _Graph(nn.Module):
    """What is converted: NHWC at both ends."""

    def __init__(self, end: EndModel, pixels: PixelInput) -> None:
        super().__init__()
        self.end = IntegerEnd(end, pixels)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        features, logits = self.end(image.permute(0, 3, 1, 2))
        return {"features": features.permute(0, 2, 3, 1), "logits": logits}


def _convert(graph: nn.Module, sample: NDArray[np.uint8]) -> bytes:
    with quiet():
        import litert_torch  # type: ignore[import-untyped]

        image = torch.from_numpy(sample.astype(np.float32))
        try:
            converted = litert_torch.convert(graph.eval(), sample_kwargs={"image": image})
            return bytes(converted.model_content())
        except OSError:
            raise  # a full disk is not the model's fault
        except Exception as error:  # the converter raises whatever its compiler passes raise
            reason = str(error).strip().splitlines()
            raise ExportError(
                f"litert-torch cannot convert the end model: "
                f"{reason[0] if reason else type(error).__name__}",
                "leave TFLite out, or cut before the operation that the message names",
            ) from error


def _quantize(
    model: bytes,
    calibration: NDArray[np.uint8],
    pixels: PixelInput,
    fixed: Mapping[str, tuple[float, int]],
) -> bytes:
    with quiet():
        from ai_edge_quantizer import (  # type: ignore[import-untyped]
            calibrator,
            quantizer,
            recipe,
        )
        from ai_edge_quantizer.utils import qsv_utils  # type: ignore[import-untyped]

        static = recipe.static_wi8_ai8()
        recipes = quantizer.recipe_manager.RecipeManager()
        recipes.load_quantization_recipe(static)
        ranges = calibrator.Calibrator(
            model, num_threads=1, qsv_update_func=qsv_utils.min_max_update
        )
        (signature,) = ranges.get_signature_list()
        photos = [{"image": pixels.real(calibration[i : i + 1])} for i in range(len(calibration))]
        ranges.calibrate({signature: photos}, recipes)
        found = ranges.get_model_qsvs()
        for tensor, (scale, zero_point) in _by_tensor(model, fixed).items():
            found[tensor] = _range(found[tensor], scale, zero_point)
        result = quantizer.Quantizer(model, static).quantize(found, enable_progress_report=False)
        return bytes(result.quantized_model)


def _range(
    measured: Mapping[str, NDArray[Any]], scale: float, zero_point: int
) -> dict[str, NDArray[Any]]:
    """Return the range that int8 with `scale` and `zero_point` spans, in the measured form."""
    low = (-128 - zero_point) * scale
    high = low + INT8_STEPS * scale
    return {
        **measured,
        "min": np.full_like(measured["min"], low),
        "max": np.full_like(measured["max"], high),
    }


def _by_tensor(
    model: bytes, fixed: Mapping[str, tuple[float, int]]
) -> dict[str, tuple[float, int]]:
    """Translate signature names to tensor names of the float model."""
    from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-untyped]

    runner = Interpreter(model_content=model).get_signature_runner()
    details = {**runner.get_input_details(), **runner.get_output_details()}
    return {details[name]["name"]: value for name, value in fixed.items()}


def _specs(path: Path) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(path)).get_signature_runner()

    def spec(name: str, detail: Mapping[str, Any]) -> TensorSpec:
        scale, zero_point = detail["quantization"]
        shape = tuple(int(d) for d in detail["shape"][1:])
        layout = "NHWC" if len(shape) == 3 else "NC"
        dtype = np.dtype(detail["dtype"]).name
        return TensorSpec(name, shape, layout, dtype, float(scale), int(zero_point))

    inputs = tuple(spec(k, v) for k, v in runner.get_input_details().items())
    outputs = tuple(spec(k, v) for k, v in sorted(runner.get_output_details().items()))
    return inputs, outputs
