"""The stages that learn: trunk features of the training photos, then the two halves."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from edge_kit.errors import ExportError
from exporters.config import ExportConfig
from exporters.data.features import FeatureTask, compute_features
from exporters.data.photos import PhotoSet
from exporters.engines.onnx_export import trace_to_onnx
from exporters.graph.halves import CloudHalf, EndModel, ExitHead, Halves
from exporters.graph.plan import SplitPlan, fingerprint
from exporters.progress import Progress
from exporters.stages.stage import Stage, Workspace
from exporters.train.training import (
    FeatureCache,
    TrainingRecipe,
    fitting_channels,
    train_halves,
    train_tail,
)

__all__ = ["cache_features", "learn_halves", "learn_tail", "training_config"]

FEATURE_SCALE = 1.0  # the step that training rounds with


def training_config(config: ExportConfig, plan: SplitPlan) -> TrainingRecipe:
    """Return how to train, the trainer's own values where the user gave none."""
    given: dict[str, Any] = {
        "epochs": config.epochs,
        "tail_epochs": config.tail_epochs,
        "message_bytes": config.message_bytes,
    }
    given = {name: value for name, value in given.items() if value is not None}
    width, height, columns = plan.cut.shape
    trained = TrainingRecipe(seed=config.seed, **given)
    channels = config.channels or fitting_channels(trained.message_bytes, height * columns)
    return replace(trained, channels=min(channels, width))


def cache_features(
    name: str,
    config: ExportConfig,
    plan: SplitPlan,
    photos: PhotoSet,
    workspace: Workspace,
    progress: Progress,
) -> tuple[FeatureCache, Stage]:
    """Compute the trunk's features of the training split, or find them done.

    Args:
        name: Of the stage and its folder.
        config: Views, seed, processes.
        plan: The cut model.
        photos: The data set.
        workspace: Where the stages are.
        progress: Told what happens.
    """
    rule = plan.classifier.rule.to_json()
    identity = {"model": fingerprint(plan.trunk), "cut": plan.cut.node, "rule": rule}
    trunk = workspace.run(f"{name}-trunk", identity, lambda folder: _write_trunk(plan, folder))
    task = FeatureTask(
        trunk=trunk.folder / "trunk.onnx",
        photos=tuple(photos.path(p) for p in photos.splits["train"]),
        rule=plan.classifier.rule,
        shape=plan.cut.shape,
        folder=workspace.root / name,
        views=config.views,
        seed=config.seed,
    )

    def make(folder: Path) -> None:
        compute_features(
            task,
            processes=config.workers,
            tick=lambda done, total: progress.step(name, done, total),
        )

    inputs = {"photos": photos.fingerprint("train"), "views": config.views, "seed": config.seed}
    stage = workspace.run(name, inputs, make, after=[trunk])
    views = compute_features(task)  # nothing is left to compute: opens the files
    return FeatureCache(views, photos.labels("train")), stage


def _write_trunk(plan: SplitPlan, folder: Path) -> None:
    trunk = nn.Sequential(plan.normalize, plan.trunk)
    image = torch.zeros(1, 3, *plan.size)
    trace_to_onnx(trunk, image, folder / "trunk.onnx", outputs=("features",))


def learn_tail(
    plan: SplitPlan,
    cache: FeatureCache,
    config: TrainingRecipe,
    workspace: Workspace,
    progress: Progress,
    features: Stage,
) -> Stage:
    """Train a pretrained tail with its fresh classifier, and put it into the plan's classifier."""

    def make(folder: Path) -> None:
        tail = copy.deepcopy(plan.tail).requires_grad_(True)
        prefix = plan.classifier.fresh or ""
        fresh = [p for name, p in tail.named_parameters() if name.startswith(prefix)]
        trained = train_tail(tail, fresh, cache, config, progress.step)
        _save(trained.state_dict(), folder / "tail.pt")

    stage = workspace.run("tail", {"training": asdict(config)}, make, after=[features])
    state = _read(stage.folder / "tail.pt")
    # Tail and whole name their layers alike, so the whole becomes the trained model.
    plan.classifier.module.load_state_dict(state, strict=False)
    plan.classifier.module.eval().requires_grad_(False)
    return stage


def learn_halves(
    plan: SplitPlan,
    cache: FeatureCache,
    classes: int,
    config: TrainingRecipe,
    workspace: Workspace,
    progress: Progress,
    before: Sequence[Stage],
) -> tuple[Halves, Stage]:
    """Train bottleneck, exit and adapted tail, or load what an earlier run trained."""

    def make(folder: Path) -> None:
        tail = copy.deepcopy(plan.tail).requires_grad_(True)
        trained = train_halves(
            plan.normalize, plan.trunk, tail, cache, classes, config, progress.step
        )
        parts = {name: part.state_dict() for name, part in _parts(trained).items()}
        _save(parts, folder / "halves.pt")

    inputs: dict[str, Any] = {"training": asdict(config), "classes": classes}
    if not plan.classifier.tuned:  # else one of the stages before made the tail
        inputs["tail"] = fingerprint(plan.tail)
    stage = workspace.run("halves", inputs, make, after=before)
    halves = _fresh_halves(plan, classes, config)
    state = _read(stage.folder / "halves.pt")
    for name, part in _parts(halves).items():
        part.load_state_dict(state[name])
        part.requires_grad_(False)
    return halves, stage


def _parts(halves: Halves) -> dict[str, nn.Module]:
    return {
        "encode": halves.end.encode,
        "head": halves.end.head,
        "decode": halves.cloud.decode,
        "tail": halves.cloud.tail,
    }


def _fresh_halves(plan: SplitPlan, classes: int, config: TrainingRecipe) -> Halves:
    width, *size = plan.cut.shape
    encode = nn.Conv2d(width, config.channels, 1)
    decode = nn.Conv2d(config.channels, width, 1)
    head = ExitHead(config.channels, classes, (size[0], size[1]), config.exit_width)
    end = EndModel(plan.normalize, plan.trunk, encode, head, FEATURE_SCALE)
    return Halves(end.eval(), CloudHalf(decode, copy.deepcopy(plan.tail)).eval())


def _save(state: Mapping[str, Any], path: Path) -> None:
    """Write what `_read` reads; on a full disk torch itself raises no OSError."""
    packed = io.BytesIO()
    torch.save(state, packed)
    path.write_bytes(packed.getbuffer())


def _read(path: Path) -> Mapping[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ExportError(
            f"{path} cannot be read: {error}", "delete its folder and run the export again"
        ) from error
    assert isinstance(state, Mapping)  # this module wrote it
    return state
