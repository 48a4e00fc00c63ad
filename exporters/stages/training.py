"""The stages that train: a backbone's fresh tail, then the two halves."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from exporters.config import SplitConfig, TrainingConfig
from exporters.data.photos import PhotoSet
from exporters.graph.cuts import Candidate
from exporters.graph.halves import CloudHalf, EndModel, ExitHead, Halves
from exporters.graph.plan import Classifier, SplitPlan, fingerprint, make_plan
from exporters.stages.features import cache_features
from exporters.stages.workspace import Workspace
from exporters.train.training import (
    FeatureCache,
    TrainingRecipe,
    fitting_channels,
    train_halves,
    train_tail,
)

__all__ = ["learn_halves", "training_recipe", "tune"]

FEATURE_SCALE = 1.0  # the step that training rounds with
TUNING_BUDGET = 0.5  # of a backbone, the largest share that stays as pretrained


def training_recipe(
    config: TrainingConfig, cut: Candidate, channels: int | None = None
) -> TrainingRecipe:
    """Return how to train, the trainer's own values where the user gave none.

    Args:
        config: What the user gave.
        cut: Where the bottleneck is.
        channels: Its width; None fits it to the message size.
    """
    given: dict[str, Any] = {
        "epochs": config.epochs,
        "tail_epochs": config.tail_epochs,
        "message_bytes": config.message_bytes,
    }
    given = {name: value for name, value in given.items() if value is not None}
    recipe = TrainingRecipe(seed=config.seed, **given)
    width, height, columns = cut.shape
    channels = channels or fitting_channels(recipe.message_bytes, height * columns)
    return replace(recipe, channels=min(channels, width))


def tune(
    classifier: Classifier,
    photos: PhotoSet,
    split: SplitConfig,
    config: TrainingConfig,
    work: Workspace,
) -> Classifier:
    """Fine-tune the end of a backbone, in place; a trained classifier comes back as it is."""
    if classifier.fresh is None:
        return classifier
    budget = min(split.budget, TUNING_BUDGET)
    plan = make_plan(classifier, split.tune_from, budget, split.channels)
    work.progress.say(f"fine-tune what follows {plan.cut.name}")
    cache = cache_features("tuning", plan, photos, config, work)
    recipe = training_recipe(config, plan.cut, split.channels)
    prefix = classifier.fresh

    def make(folder: Path) -> None:
        tail = copy.deepcopy(plan.tail).requires_grad_(True)
        fresh = [p for name, p in tail.named_parameters() if name.startswith(prefix)]
        trained = train_tail(tail, fresh, cache, recipe, work.tick("tail"))
        _save(trained.state_dict(), folder / "tail.pt")

    inputs = {"training": asdict(recipe), "tail": fingerprint(plan.tail)}
    folder = work.run("tail", inputs, make, after=["tuning"])
    # Tail and whole name their layers alike, so the whole becomes the trained model.
    classifier.module.load_state_dict(_read(folder / "tail.pt"), strict=False)
    classifier.module.eval().requires_grad_(False)
    return replace(classifier, fresh=None)


def learn_halves(
    plan: SplitPlan, cache: FeatureCache, classes: int, recipe: TrainingRecipe, work: Workspace
) -> Halves:
    """Train bottleneck, exit and adapted tail, or load what an earlier run trained."""

    def make(folder: Path) -> None:
        tail = copy.deepcopy(plan.tail).requires_grad_(True)
        trained = train_halves(
            plan.normalize, plan.trunk, tail, cache, classes, recipe, work.tick("halves")
        )
        parts = {name: part.state_dict() for name, part in _parts(trained).items()}
        _save(parts, folder / "halves.pt")

    inputs = {"training": asdict(recipe), "classes": classes, "tail": fingerprint(plan.tail)}
    folder = work.run("halves", inputs, make, after=["features"])
    halves = _fresh_halves(plan, classes, recipe)
    state = _read(folder / "halves.pt")
    for name, part in _parts(halves).items():
        part.load_state_dict(state[name])
        part.requires_grad_(False)
    return halves


def _parts(halves: Halves) -> dict[str, nn.Module]:
    return {
        "encode": halves.end.encode,
        "head": halves.end.head,
        "decode": halves.cloud.decode,
        "tail": halves.cloud.tail,
    }


def _fresh_halves(plan: SplitPlan, classes: int, recipe: TrainingRecipe) -> Halves:
    width, *size = plan.cut.shape
    encode = nn.Conv2d(width, recipe.channels, 1)
    decode = nn.Conv2d(recipe.channels, width, 1)
    head = ExitHead(recipe.channels, classes, (size[0], size[1]), recipe.exit_width)
    end = EndModel(plan.normalize, plan.trunk, encode, head, FEATURE_SCALE)
    return Halves(end.eval(), CloudHalf(decode, copy.deepcopy(plan.tail)).eval())


def _save(state: Mapping[str, Any], path: Path) -> None:
    """Write what `_read` reads; on a full disk torch itself raises no OSError."""
    packed = io.BytesIO()
    torch.save(state, packed)
    path.write_bytes(packed.getbuffer())


def _read(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)
