"""From what the user names to a classifier that is traced and cut."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from torch import fx, nn

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import ExportError
from exporters.config import ModelConfig
from exporters.graph.backbones import load_backbone
from exporters.graph.cuts import Candidate, choose, find_cuts, split
from exporters.graph.halves import Normalize
from exporters.graph.load import load_model
from exporters.graph.trace import Traced, trace

__all__ = [
    "SORTING_CHANNELS",
    "Classifier",
    "SplitPlan",
    "check_classes",
    "fingerprint",
    "load_classifier",
    "make_plan",
]

DEFAULT_SIZE = 224
# The usual torchvision constants, in pixel units.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)
SORTING_CHANNELS = 12  # any constant sorts cuts by their number of positions


@dataclass(frozen=True)
class Classifier:
    """A classifier and how it wants its images.

    Attributes:
        module: Normalized images to logits, in eval mode.
        rule: Size, resize rule, mean and std.
        fresh: Prefix of the parameters that no one trained yet; None when the model is trained.
    """

    module: nn.Module
    rule: Preprocessing
    fresh: str | None = None

    def trace(self) -> Traced:
        """Turn it into a graph; errors as `exporters.graph.trace.trace`."""
        return trace(self.module, (3, self.rule.height, self.rule.width))


@dataclass(frozen=True)
class SplitPlan:
    """A classifier cut in two.

    Attributes:
        rule: How photos become its input.
        traced: The whole as a graph.
        cut: The chosen cut.
        trunk: Normalized images to features; shares the whole's weights.
        tail: Features to logits; its own copy.
    """

    rule: Preprocessing
    traced: Traced
    cut: Candidate
    trunk: fx.GraphModule
    tail: fx.GraphModule

    @property
    def normalize(self) -> Normalize:
        """Pixel units to what the trunk takes."""
        return Normalize(self.rule.mean, self.rule.std)

    @property
    def full(self) -> nn.Module:
        """The whole model from pixels (0 to 255) to logits."""
        return nn.Sequential(self.normalize, self.traced.module).eval()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the input, pixels."""
        return self.rule.height, self.rule.width


def load_classifier(config: ModelConfig, classes: int, seed: int = 0) -> Classifier:
    """Load the user's model, or a pretrained backbone with a fresh classifier.

    Args:
        config: Which model, and its input.
        classes: Width of a fresh classifier.
        seed: Of its first weights.

    Raises:
        UsageError, ExportError, MissingExtraError: As `load_model` and `load_backbone` say.
    """
    if config.backbone is not None:
        backbone = load_backbone(config.backbone, classes, config.size, seed)
        rule = config.preprocessing(backbone.size, backbone.mean, backbone.std)
        return Classifier(backbone.module, rule, backbone.fresh)
    assert config.factory is not None  # the config holds one of the two
    module = load_model(config.factory, config.weights)
    return Classifier(module, config.preprocessing(DEFAULT_SIZE, IMAGENET_MEAN, IMAGENET_STD))


def make_plan(
    classifier: Classifier, cut_name: str, budget: float, channels: int | None
) -> SplitPlan:
    """Trace a classifier, choose the cut and split there.

    Args:
        classifier: The classifier.
        cut_name: A cut's name, or ``auto``.
        budget: Largest share of the multiply-accumulates that ``auto`` puts before the cut.
        channels: Width of the bottleneck, where it is known.

    Raises:
        UsageError, ExportError: As `trace`, `find_cuts`, `choose` and `split` say.
    """
    traced = classifier.trace()
    cut = choose(find_cuts(traced), cut_name, budget=budget, channels=channels or SORTING_CHANNELS)
    trunk, tail = split(traced, cut)
    return SplitPlan(classifier.rule, traced, cut, trunk, tail)


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
