"""Every gate that an export must pass, in order."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from exporters.data.decoded import DecodedPhotos, spread
from exporters.engines.exported import Exported
from exporters.engines.files import EngineFiles
from exporters.graph.halves import Halves
from exporters.graph.plan import SplitPlan
from exporters.judge import gates, parity
from exporters.judge.gates import Gate
from exporters.judge.tflite_loads import tflite_loads

__all__ = ["verify"]

PHOTOS = 512  # judge decisions; more only take time
FLOAT_PHOTOS = 32  # compare logits of float models
ACCURACY_BUDGET = 0.01  # the int8 end model against its float twin
SLACK_PHOTOS = 2  # a split so small that one photo is over the budget proves nothing


def verify(
    plan: SplitPlan,
    halves: Halves,
    files: EngineFiles,
    photos: DecodedPhotos,
    *,
    storage: str,
    size_ratio: float,
) -> tuple[Gate, ...]:
    """Measure all gates; none raises here.

    Args:
        plan: The cut model.
        halves: Trained.
        files: What was built.
        photos: Of the calibration split.
        storage: How the weights of the cloud files are stored.
        size_ratio: How many times smaller than its float twin an int8 end model must be.
    """
    count = len(photos.labels)
    some = spread(count, PHOTOS)
    shown, truth = np.asarray(photos.pixels[some]), photos.labels[some]
    few = np.asarray(photos.pixels[spread(count, FLOAT_PHOTOS)])
    batch = torch.from_numpy(few.transpose(0, 3, 1, 2).astype(np.float32))
    inputs = plan.normalize(batch).numpy()
    loss = max(ACCURACY_BUDGET, SLACK_PHOTOS / len(some))
    full = plan.full
    once = {f.source: _Once(f.source, f.entry) for f in (files.twin, *files.ends)}
    twin, primary = once[files.twin.source], once[files.primary.source]
    measured = [
        parity.split_parity(plan.traced.module, plan.trunk, plan.tail, inputs),
        parity.full_parity(full, few, size=plan.size),
        parity.stored_full(full, files.full, few, storage=storage),
        parity.end_parity(halves, twin, few),
        parity.tail_parity(halves, files.tail, primary(few)["features"], storage=storage),
    ]
    for file in files.ends:
        end = once[file.source]
        measured += [
            gates.int8_agreement(end, twin, shown),
            gates.cloud_agreement(end, twin, files.tail, shown),
            gates.int8_accuracy(end, twin, shown, truth, budget=loss),
            gates.int8_size(end, twin, budget=size_ratio),
        ]
    if files.tflite is not None:
        tflite = once[files.tflite.source]
        if primary is not tflite:
            measured.append(gates.tflite_agreement(tflite, primary, shown))
        measured += tflite_loads(tflite)
    return tuple(measured)


class _Once(Exported):
    """Runs the same photos once, however many gates ask."""

    @cached_property
    def _answers(self) -> dict[int, tuple[NDArray[Any], dict[str, NDArray[Any]]]]:
        return {}

    def __call__(self, batch: NDArray[Any]) -> dict[str, NDArray[Any]]:
        # The batch is kept beside its answer, so that no other can get its id.
        if id(batch) not in self._answers:
            self._answers[id(batch)] = (batch, super().__call__(batch))
        return self._answers[id(batch)][1]
