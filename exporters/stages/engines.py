"""The stages that turn trained halves into engine files, one stage a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import sha256_file
from edge_kit.bundle.split import EngineFile
from edge_kit.records import from_json, to_json
from edge_kit.tensors import TensorSpec
from exporters.config import QuantizationConfig
from exporters.data.decoded import spread
from exporters.engines.exported import Exported
from exporters.engines.files import EngineFiles
from exporters.engines.onnx_export import export_end_float, export_full, export_tail
from exporters.engines.onnx_quant import export_end_onnx
from exporters.engines.tflite_export import export_end_tflite
from exporters.graph.halves import Halves
from exporters.graph.plan import SplitPlan
from exporters.stages.workspace import Workspace

__all__ = ["build_engines"]

CALIBRATION_PHOTOS = 256  # more change the ranges little
_ENTRY = "entry.json"

Make = Callable[[Path], Exported]


def build_engines(
    plan: SplitPlan,
    halves: Halves,
    calibration: NDArray[np.uint8],
    config: QuantizationConfig,
    work: Workspace,
) -> EngineFiles:
    """Write every engine file whose stage was not done before.

    Args:
        plan: The cut model.
        halves: Of that cut, trained.
        calibration: Pixels of the calibration split, uint8 (N, h, w, 3).
        config: Targets and storage.
        work: Where the stages are.
    """
    end, size, weights = halves.end, plan.size, config.cloud_weights
    pixels = np.asarray(calibration[spread(len(calibration), CALIBRATION_PHOTOS)])
    channels, (_, height, width) = end.encode.out_channels, plan.cut.shape
    features = TensorSpec(
        "features", (channels, height, width), "NCHW", "int8", end.feature_scale, 0
    )

    def build(name: str, make: Make, after: tuple[str, ...] = (), **inputs: str) -> Exported:
        return _build(name, make, inputs, ["halves", *after], work)

    twin = build("end-float.onnx", lambda p: export_end_float(end, p, size=size))
    ends = [
        build(f"end-{arch}.onnx", partial(export_end_onnx, end, pixels, arch=arch), ("pixels",))
        for arch in config.targets
    ]
    if config.tflite:
        ends.append(build("end.tflite", partial(export_end_tflite, end, pixels), ("pixels",)))
    tail = build(
        "tail.onnx",
        lambda p: export_tail(halves.cloud, features, p, weights=weights),
        weights=weights,
    )
    full = build(
        "full.onnx",
        lambda p: export_full(plan.full, p, size=size, weights=weights),
        weights=weights,
    )
    return EngineFiles(twin, tuple(ends), tail, full)


def _build(
    name: str, make: Make, inputs: dict[str, str], after: list[str], work: Workspace
) -> Exported:
    def keep(folder: Path) -> None:
        entry = to_json(make(folder / name).entry)
        (folder / _ENTRY).write_text(json.dumps(entry), encoding="utf-8")

    folder = work.run(name, inputs, keep, after)
    entry = from_json(EngineFile, json.loads((folder / _ENTRY).read_text(encoding="utf-8")), _ENTRY)
    file = folder / name
    return Exported(file, replace(entry, sha256=sha256_file(file), size=file.stat().st_size))
