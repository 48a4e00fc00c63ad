"""A split point: everything that cutting the model at one place decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edge_kit import records
from edge_kit.exits import CurvePoint, ExitRule
from edge_kit.tensors import TensorSpec

__all__ = ["Costs", "EngineFile", "Split", "spoken"]


@dataclass(frozen=True)
class EngineFile:
    """One model file of a bundle, and the tensors that are used of it.

    Attributes:
        path: Relative to the bundle, with forward slashes.
        role: ``end``, ``tail`` or ``full``.
        engine: ``onnx`` or ``tflite``.
        arch: ``any``, ``x86_64``, ``aarch64`` or ``armv7l``.
        sha256: Hexadecimal digest of the file.
        size: Bytes.
        inputs: Tensors by signature name. ``end`` and ``full`` take ``image``, ``tail`` takes
            ``features``.
        outputs: ``end`` gives ``features`` and ``logits``; ``tail`` and ``full`` give ``logits``.
        requires: Versions, such as ``{"onnx_ir": 8, "opset": 17}`` or
            ``{"tflite_schema": 3, "ops": {"CONV_2D": 3}}``.
        figures: What the exporter measured of this file.
    """

    path: str
    role: str
    engine: str
    arch: str
    sha256: str
    size: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    requires: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Costs:
    """What a split costs, as the exporter measured it; None for what it did not measure.

    Attributes:
        device_macs: Multiply-accumulates of the end model, for one photo.
        cloud_macs: Those of the cloud half.
        message_bytes_mean: Mean size of a feature message, header included.
        message_bytes_p99: Its 99th percentile.
        device_accuracy: Top-1 of the end model alone, 0 to 1.
        cloud_accuracy: Top-1 when the cloud half answers every photo.
        hybrid_accuracy: Top-1 under the split's exit rule.
        photos: Number of test photos behind the accuracies and sizes.
    """

    device_macs: int | None = None
    cloud_macs: int | None = None
    message_bytes_mean: float | None = None
    message_bytes_p99: float | None = None
    device_accuracy: float | None = None
    cloud_accuracy: float | None = None
    hybrid_accuracy: float | None = None
    photos: int | None = None


@dataclass(frozen=True)
class Split:
    """A split point.

    Attributes:
        name: The traced module or tensor after which the model is cut, such as ``blocks.7``.
        features: What crosses the network there, bottleneck applied. The scale and zero point
            hold for every engine; only the layout differs, and a message states its own.
        macs_share: Share of the full model's multiply-accumulates before the cut, 0 to 1.
        end: The device's half, one file per engine and architecture, in order of preference.
        tail: The cloud half; None where the bundle holds none.
        exit: The rule that the device applies by default.
        curve: The threshold sweep on the calibration photos, T ascending.
        costs: See `Costs`.
    """

    name: str
    features: TensorSpec
    macs_share: float
    end: tuple[EngineFile, ...]
    tail: EngineFile | None
    exit: ExitRule
    curve: tuple[CurvePoint, ...] = ()
    costs: Costs = field(default_factory=Costs)

    @property
    def engines(self) -> tuple[EngineFile, ...]:
        """All model files of this split."""
        return self.end if self.tail is None else (*self.end, self.tail)


def spoken(record: object) -> str:
    """Return the numbers and names of a record, for people: ``photos 372, device macs 9``."""
    values = records.to_json(record).items()
    return ", ".join(
        f"{key.replace('_', ' ')} {format(value, '.6g') if isinstance(value, float) else value}"
        for key, value in values
        if isinstance(value, str | int | float)
    )
