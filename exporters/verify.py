"""Every gate that an export must pass, in order."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from exporters import gates, parity
from exporters.building import EngineFiles, full_model
from exporters.config import ExportConfig
from exporters.gates import Gate
from exporters.halves import Halves
from exporters.photos import spread
from exporters.plan import Plan
from exporters.tflite_loads import tflite_loads

__all__ = ["verify"]

PHOTOS = 512  # judge decisions; more only take time
FLOAT_PHOTOS = 32  # compare logits of float models
ACCURACY_BUDGET = 0.01  # the int8 end model against its float twin
SLACK_PHOTOS = 2  # a split so small that one photo is over the budget proves nothing


def verify(
    plan: Plan,
    halves: Halves,
    files: EngineFiles,
    pixels: NDArray[np.uint8],
    labels: NDArray[np.int64],
    config: ExportConfig,
) -> tuple[Gate, ...]:
    """Measure all gates; none raises here.

    Args:
        plan: The cut model.
        halves: Trained.
        files: What was built.
        pixels: Of the calibration split, uint8 (N, h, w, 3).
        labels: Of the same photos, (N,).
        config: How cloud weights are stored.
    """
    some = spread(len(pixels), PHOTOS)
    shown, truth = np.asarray(pixels[some]), labels[some]
    few = np.asarray(pixels[spread(len(pixels), FLOAT_PHOTOS)])
    batch = torch.from_numpy(few.transpose(0, 3, 1, 2).astype(np.float32))
    inputs = plan.normalize(batch).numpy()
    loss = max(ACCURACY_BUDGET, SLACK_PHOTOS / len(some))
    whole, storage = full_model(plan), config.cloud_weights
    measured = [
        parity.split_parity(plan.traced.module, plan.trunk, plan.tail, inputs),
        parity.full_parity(whole, few, size=plan.size),
        parity.stored_full(whole, files.full, few, storage=storage),
        parity.end_parity(halves, files.twin, few),
        parity.tail_parity(halves, files.tail, files.primary(few)["features"], storage=storage),
    ]
    for end in files.ends:
        measured += [
            gates.int8_agreement(end, files.twin, shown),
            gates.cloud_agreement(end, files.twin, files.tail, shown),
            gates.int8_accuracy(end, files.twin, shown, truth, budget=loss),
            gates.int8_size(end, files.twin, budget=config.size_ratio),
        ]
    tflite = files.tflite
    if tflite is not None:
        if files.primary is not tflite:
            measured.append(gates.tflite_agreement(tflite, files.primary, shown))
        measured += tflite_loads(tflite)
    return tuple(measured)
