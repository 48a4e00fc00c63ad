"""The stage that computes the frozen trunk's features of the training photos."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from edge_kit.host.board import available_cores
from edge_kit.records import to_json
from exporters.config import TrainingConfig
from exporters.data.features import FeatureTask, compute_features
from exporters.data.photos import PhotoSet
from exporters.engines.onnx_export import trace_to_onnx
from exporters.graph.plan import SplitPlan, fingerprint
from exporters.stages.workspace import Workspace
from exporters.train.training import FeatureCache

__all__ = ["cache_features"]


def cache_features(
    name: str, plan: SplitPlan, photos: PhotoSet, config: TrainingConfig, work: Workspace
) -> FeatureCache:
    """Compute the trunk's features of the training split in the stage `name`, or find them done."""

    def write_trunk(folder: Path) -> None:
        image = torch.zeros(1, 3, *plan.size)
        trunk = nn.Sequential(plan.normalize, plan.trunk)
        trace_to_onnx(trunk, image, folder / "trunk.onnx", outputs=("features",))

    identity = {
        "model": fingerprint(plan.trunk),
        "cut": plan.cut.node,
        "rule": to_json(plan.rule),
    }
    made = work.run(f"{name}-trunk", identity, write_trunk)
    task = FeatureTask(
        trunk=made / "trunk.onnx",
        photos=tuple(photos.path(p) for p in photos.splits["train"]),
        rule=plan.rule,
        shape=plan.cut.shape,
        folder=work.root / name,
        views=config.views,
        seed=config.seed,
    )

    def make(_folder: Path) -> None:
        processes = config.processes or available_cores()
        compute_features(task, processes=processes, tick=work.tick(name))

    inputs = {"photos": photos.fingerprint("train"), "views": config.views, "seed": config.seed}
    work.run(name, inputs, make, after=[f"{name}-trunk"])
    views = compute_features(task)  # nothing is left to compute: opens the files
    return FeatureCache(views, photos.labels("train"))
