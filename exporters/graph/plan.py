"""From what the user names to a model that is traced and cut."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch import fx, nn

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import ExportError
from exporters.config import IMAGENET_MEAN, IMAGENET_STD, ExportConfig
from exporters.graph.backbones import load_backbone
from exporters.graph.cuts import Candidate, choose, find_cuts, split
from exporters.graph.halves import Normalize
from exporters.graph.load import load_model
from exporters.graph.trace import Traced, trace

__all__ = [
    "Classifier",
    "SplitPlan",
    "check_classes",
    "fingerprint",
    "load_classifier",
    "make_plan",
]

DEFAULT_SIZE = 224
SORTING_CHANNELS = 12  # any constant sorts cuts by their number of positions


@dataclass(frozen=True)
class Classifier:
    """A classifier and how it wants its images.

    Attributes:
        module: Normalized images to logits, in eval mode.
        rule: Size, resize rule, mean and std.
        fresh: Prefix of the parameters that no one trained yet; None when the model is trained.
        tuned: Whether a stage of this export trained it, which then stands for its weights.
    """

    module: nn.Module
    rule: Preprocessing
    fresh: str | None = None
    tuned: bool = False


@dataclass(frozen=True)
class SplitPlan:
    """A classifier cut in two.

    Attributes:
        classifier: Where it comes from.
        traced: The whole as a graph.
        cut: The chosen cut.
        trunk: Normalized images to features; shares the whole's weights.
        tail: Features to logits; its own copy.
    """

    classifier: Classifier
    traced: Traced
    cut: Candidate
    trunk: fx.GraphModule
    tail: fx.GraphModule

    @property
    def normalize(self) -> Normalize:
        """Pixel units to what the trunk takes."""
        return Normalize(self.classifier.rule.mean, self.classifier.rule.std)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input, pixels."""
        return self.classifier.rule.height, self.classifier.rule.width


def load_classifier(config: ExportConfig, classes: int) -> Classifier:
    """Load the user's model, or a pretrained backbone with a fresh classifier.

    Args:
        config: See `ExportConfig`.
        classes: Width of a fresh classifier.

    Raises:
        UsageError, ExportError, MissingExtraError: As `load_model` and `load_backbone` say.
    """
    if config.backbone is not None:
        backbone = load_backbone(config.backbone, classes, config.size, config.seed)
        rule = config.preprocessing(backbone.size, backbone.mean, backbone.std)
        return Classifier(backbone.module, rule, backbone.fresh)
    assert config.model is not None  # the config holds one of the two
    module = load_model(config.model, config.weights)
    return Classifier(module, config.preprocessing(DEFAULT_SIZE, IMAGENET_MEAN, IMAGENET_STD))


def make_plan(
    config: ExportConfig, classifier: Classifier, cut_name: str, budget: float
) -> SplitPlan:
    """Trace a classifier, choose the cut and split there.

    Args:
        config: See `ExportConfig`.
        classifier: The classifier.
        cut_name: A cut's name, or ``auto``.
        budget: Most of the multiply-accumulates that ``auto`` puts before the cut.

    Raises:
        UsageError, ExportError: As `trace`, `find_cuts`, `choose` and `split` say.
    """
    rule = classifier.rule
    traced = trace(classifier.module, (3, rule.height, rule.width))
    channels = config.channels or SORTING_CHANNELS
    cut = choose(find_cuts(traced), cut_name, budget=budget, channels=channels)
    trunk, tail = split(traced, cut)
    return SplitPlan(classifier, traced, cut, trunk, tail)


def check_classes(traced: Traced, names: tuple[str, ...]) -> None:
    """Refuse a trained model that tells another number of classes apart than the photos have.

    Raises:
        ExportError: They differ.
    """
    if traced.classes != len(names):
        raise ExportError(
            f"the model has {traced.classes} classes, the photos have {len(names)} class folders "
            f"({', '.join(names[:6])}{', ...' if len(names) > 6 else ''})",
            "give one folder per class of the model, named so that they sort in its order",
        )


def fingerprint(module: fx.GraphModule) -> str:
    """Return a hash over graph and weights."""
    digest = hashlib.sha256(str(module.code).encode())
    for name, tensor in module.state_dict().items():
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()
