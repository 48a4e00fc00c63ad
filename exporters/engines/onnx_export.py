"""Float ONNX: the cloud half, the whole model, and the float twin of the end model.

The TorchScript exporter (``dynamo=False``) is used on purpose: it folds batch normalization into
the convolutions, names inputs and outputs as told, and gives opset 17, which every onnxruntime
since 1.12 runs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from edge_kit.errors import ExportError
from edge_kit.tensors import TensorSpec
from exporters.engines.exported import Exported, describe
from exporters.engines.weights import compress_weights

if TYPE_CHECKING:
    from exporters.graph.halves import EndModel

__all__ = [
    "IR_VERSION",
    "OPSET",
    "describe_onnx",
    "export_end_float",
    "export_full",
    "export_tail",
    "requirements",
    "trace_to_onnx",
]

OPSET = 17
IR_VERSION = 8  # the newest that onnxruntime 1.12, the first with opset 17, reads


def export_end_float(end: EndModel, path: Path, *, size: tuple[int, int]) -> Exported:
    """Write the float twin of an end model, against which the int8 files are judged.

    Args:
        end: The trained end model.
        path: Where to write.
        size: Height and width of its input in pixels.

    Returns:
        A file that takes float pixels 0..255 and gives unrounded features and logits.

    Raises:
        ExportError: torch cannot export the model.
    """
    image = torch.zeros(1, 3, *size)
    model = _FloatEnd(end).eval()
    trace_to_onnx(model, image, path, outputs=("features", "logits"))
    with torch.no_grad():
        features, logits = model(image)
    return describe_onnx(
        path,
        "end",
        TensorSpec("image", (3, *size), "NCHW", "float32"),
        TensorSpec("features", tuple(features.shape[1:]), "NCHW", "float32"),
        TensorSpec("logits", tuple(logits.shape[1:]), "NC", "float32"),
    )


def export_tail(
    cloud: nn.Module, features: TensorSpec, path: Path, *, weights: str = "fp32"
) -> Exported:
    """Write a cloud half: raw int8 features -> float logits, any batch size.

    Args:
        cloud: A `CloudHalf`: dequantized float features (N, c, h, w) to logits.
        features: The cut's features, int8 and NCHW.
        path: Where to write.
        weights: How weights are stored: ``fp32``, ``fp16`` or ``int8``; all compute in float32.

    Raises:
        ExportError: torch cannot export the model.
    """
    sample = torch.zeros(1, *features.shape)
    trace_to_onnx(cloud, sample, path, inputs=("features",), outputs=("logits",))
    _take_int8(path, features)
    compress_weights(path, weights)
    return describe_onnx(path, "tail", features, _logits(cloud, sample))


def export_full(
    model: nn.Module, path: Path, *, size: tuple[int, int], weights: str = "fp32"
) -> Exported:
    """Write the whole float model, normalization included: float pixels 0..255 -> logits.

    Args:
        model: Pixels (N, 3, H, W) as floats 0 to 255 to logits (N, classes).
        path: Where to write.
        size: Height and width in pixels.
        weights: As in `export_tail`.

    Raises:
        ExportError: torch cannot export the model.
    """
    image = torch.zeros(1, 3, *size)
    trace_to_onnx(model, image, path, outputs=("logits",))
    compress_weights(path, weights)
    spec = TensorSpec("image", (3, *size), "NCHW", "float32")
    return describe_onnx(path, "full", spec, _logits(model, image))


def describe_onnx(
    path: Path, role: str, given: TensorSpec, *made: TensorSpec, arch: str = "any"
) -> Exported:
    """Describe an ONNX file for the manifest: its only input and its outputs."""
    need = requirements(path)
    return describe(
        path, role=role, engine="onnx", arch=arch, inputs=(given,), outputs=made, requires=need
    )


def _logits(model: nn.Module, sample: Tensor) -> TensorSpec:
    with torch.no_grad():
        return TensorSpec("logits", tuple(model(sample).shape[1:]), "NC", "float32")


def trace_to_onnx(
    model: nn.Module,
    sample: Tensor,
    path: Path,
    *,
    inputs: Sequence[str] = ("image",),
    outputs: Sequence[str],
) -> None:
    """Export `model` in evaluation mode with a free batch dimension.

    Raises:
        ExportError: torch cannot; the message carries its reason.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    names = [*inputs, *outputs]
    model.eval()
    try:
        with warnings.catch_warnings():
            # The exporter announces its own successor, and tracing warns of constant shapes:
            # neither is of use to somebody who exports a classifier of one fixed size.
            warnings.simplefilter("ignore")
            torch.onnx.export(
                model,
                (sample,),
                os.fspath(path),
                input_names=list(inputs),
                output_names=list(outputs),
                dynamic_axes={name: {0: "n"} for name in names},
                opset_version=OPSET,
                dynamo=False,
            )
    except OSError:
        raise  # a full disk is not the model's fault
    except Exception as error:  # torch raises anything from TypeError to its own OnnxExporterError
        reason = str(error).strip().splitlines()
        raise ExportError(
            f"torch cannot export {type(model).__name__} to ONNX: "
            f"{reason[0] if reason else type(error).__name__}",
            "replace the operation that the message names, or cut before it",
        ) from error
    written = onnx.load(path)
    written.ir_version = IR_VERSION
    onnx.save(written, path)


def requirements(path: Path) -> dict[str, Any]:
    """Return what an ONNX file needs of its reader."""
    model = onnx.load(path, load_external_data=False)
    opsets = {o.domain or "ai.onnx": o.version for o in model.opset_import}
    need: dict[str, Any] = {"onnx_ir": model.ir_version, "opset": opsets.pop("ai.onnx")}
    if opsets:
        need["domains"] = opsets
    return need


class _FloatEnd(nn.Module):
    """The end model with torch's own rounding: the exporter knows it, unlike straight-through."""

    def __init__(self, end: EndModel) -> None:
        super().__init__()
        self.end = end

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        end, scale = self.end, self.end.feature_scale
        features = end.encode(end.trunk(end.normalize(pixels)))
        rounded = torch.clamp(torch.round(features / scale), -128, 127) * scale
        return features, end.head(rounded)


def _take_int8(path: Path, features: TensorSpec) -> None:
    """Put a DequantizeLinear in front of a model's only input."""
    model = onnx.load(path)
    graph = model.graph
    for node in graph.node:
        for k, name in enumerate(node.input):
            if name == "features":
                node.input[k] = "features_real"
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(features.scale, np.float32), "features_scale"),
            numpy_helper.from_array(np.array(features.zero_point, np.int8), "features_zero_point"),
        ]
    )
    graph.node.insert(
        0,
        helper.make_node(
            "DequantizeLinear",
            ["features", "features_scale", "features_zero_point"],
            ["features_real"],
        ),
    )
    graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    onnx.checker.check_model(model)
    onnx.save(model, path)
