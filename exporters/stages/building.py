"""The stages that turn trained halves into engine files, one stage a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from edge_kit.bundle import machine_arch, sha256_file
from edge_kit.bundle.manifest import EngineFile
from edge_kit.tensors import TensorSpec
from exporters.config import ExportConfig
from exporters.data.photos import spread
from exporters.engines.exported import Exported
from exporters.engines.onnx_export import export_end_float, export_full, export_tail
from exporters.engines.onnx_quant import export_end_onnx
from exporters.engines.tflite_export import export_end_tflite
from exporters.graph.halves import Halves
from exporters.graph.plan import SplitPlan
from exporters.stages.stage import Stage, Workspace

__all__ = ["EngineFiles", "build_engines", "feature_spec", "full_model"]

CALIBRATION_PHOTOS = 256  # settle the ranges; more only take time
_ENTRY = "entry.json"


@dataclass(frozen=True)
class EngineFiles:
    """Everything that an export runs or ships.

    Attributes:
        twin: Float ONNX twin of the end model; judged against, not shipped.
        ends: int8 end models, ONNX before TFLite.
        tail: The cloud half.
        full: The whole float model.
        stages: The stages that made them.
    """

    twin: Exported
    ends: tuple[Exported, ...]
    tail: Exported
    full: Exported
    stages: tuple[Stage, ...]

    @property
    def shipped(self) -> tuple[Exported, ...]:
        """What goes into the bundle."""
        return (*self.ends, self.tail, self.full)

    @property
    def tflite(self) -> Exported | None:
        """The TFLite end model, if there is one."""
        return next((f for f in self.ends if f.entry.engine == "tflite"), None)

    @property
    def primary(self) -> Exported:
        """The end model that calibrates: ONNX for this machine if there is one."""
        onnx = [f for f in self.ends if f.entry.engine == "onnx"]
        own = [f for f in onnx if f.entry.arch == machine_arch()]
        return (own or onnx or list(self.ends))[0]


def feature_spec(plan: SplitPlan, channels: int, scale: float) -> TensorSpec:
    """Return what crosses the network at the plan's cut."""
    _, height, width = plan.cut.shape
    return TensorSpec("features", (channels, height, width), "NCHW", "int8", scale, 0)


def full_model(plan: SplitPlan) -> nn.Module:
    """Return the whole model from pixels (0 to 255) to logits."""
    return nn.Sequential(plan.normalize, plan.traced.module).eval()


def build_engines(
    config: ExportConfig,
    plan: SplitPlan,
    halves: Halves,
    calibration: NDArray[np.uint8],
    workspace: Workspace,
    trained: Stage,
    photos: Stage,
) -> EngineFiles:
    """Write every engine file whose stage was not done before.

    Args:
        config: Targets and storage.
        plan: The cut model.
        halves: Trained.
        calibration: Pixels of the calibration split, uint8 (N, h, w, 3).
        workspace: Where the stages are.
        trained: The stage that trained the halves.
        photos: The stage that `calibration` comes from.
    """
    pixels = np.asarray(calibration[spread(len(calibration), CALIBRATION_PHOTOS)])
    stages: list[Stage] = []

    def build(
        name: str,
        make: Callable[[Path], Exported],
        inputs: Mapping[str, Any],
        *after: Stage,
    ) -> Exported:
        stage = workspace.run(
            name, inputs, lambda folder: _keep(make, name, folder), after=[trained, *after]
        )
        stages.append(stage)
        return _found(stage.folder)

    storage = {"weights": config.cloud_weights}
    spec = feature_spec(plan, halves.end.encode.out_channels, halves.end.feature_scale)
    twin = build("end-float.onnx", lambda p: export_end_float(halves.end, p, size=plan.size), {})
    ends = [
        build(
            f"end-{arch}.onnx",
            partial(export_end_onnx, halves.end, pixels, arch=arch),
            {},
            photos,
        )
        for arch in config.targets
    ]
    if config.tflite:
        ends.append(build("end.tflite", partial(export_end_tflite, halves.end, pixels), {}, photos))
    tail = build(
        "tail.onnx",
        lambda p: export_tail(halves.cloud, spec, p, weights=config.cloud_weights),
        storage,
    )
    full = build(
        "full.onnx",
        lambda p: export_full(full_model(plan), p, size=plan.size, weights=config.cloud_weights),
        storage,
    )
    return EngineFiles(twin, tuple(ends), tail, full, tuple(stages))


def _keep(make: Callable[[Path], Exported], name: str, folder: Path) -> None:
    made = make(folder / name)
    content = {"file": made.source.name, "entry": made.entry.to_json()}
    (folder / _ENTRY).write_text(json.dumps(content), encoding="utf-8")


def _found(folder: Path) -> Exported:
    content = json.loads((folder / _ENTRY).read_text(encoding="utf-8"))
    file = folder / content["file"]
    entry = EngineFile.from_json(content["entry"])
    return Exported(file, replace(entry, sha256=sha256_file(file), size=file.stat().st_size))
