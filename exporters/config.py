"""What an export is asked to do: frozen parts, each passed only to what needs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import UsageError

__all__ = [
    "CLOUD_WEIGHTS",
    "TARGETS",
    "BudgetConfig",
    "DataConfig",
    "ExportConfig",
    "ModelConfig",
    "OutputConfig",
    "QuantizationConfig",
    "SplitConfig",
    "TrainingConfig",
]

TARGETS = ("x86_64", "aarch64")
CLOUD_WEIGHTS = ("fp32", "fp16", "int8")


def _at_least(least: float, **flags: float | None) -> None:
    for name, value in flags.items():
        if value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} {value} is below {least:g}")


def _within(low: float, high: float, **flags: float) -> None:
    for name, value in flags.items():
        if not low <= value <= high:
            raise UsageError(f"--{name.replace('_', '-')} {value} is outside {low:g} to {high:g}")


@dataclass(frozen=True)
class DataConfig:
    """The photos.

    Attributes:
        folder: A folder per class, or such folders for each split.
        reference_photos: Labelled photos of the test split that the bundle carries.
    """

    folder: Path
    reference_photos: int = 100

    def __post_init__(self) -> None:
        _at_least(0, reference_photos=self.reference_photos)


@dataclass(frozen=True)
class ModelConfig:
    """The classifier, and what its input looks like.

    Attributes:
        factory: ``package.module:factory`` of a trained classifier, or None with `backbone`.
        weights: State dict for `factory`; None when that returns a trained model.
        backbone: Name of a pretrained backbone for people who have only photos.
        size: Side of the square input, pixels; None takes the classifier's own.
        resize: ``squash`` or ``crop``.
        mean: Per channel, pixel units; None takes the classifier's own.
        std: Likewise.
    """

    factory: str | None = None
    weights: Path | None = None
    backbone: str | None = None
    size: int | None = None
    resize: str = "squash"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if (self.factory is None) == (self.backbone is None):
            raise UsageError(
                "an export takes either a MODEL (package.module:factory) or --backbone",
                "give exactly one of them",
            )
        if self.backbone is not None and self.weights is not None:
            raise UsageError("--weights belongs to a MODEL, a --backbone brings its own")
        if self.size is not None:
            _within(16, 1024, size=self.size)

    @property
    def title(self) -> str:
        """What the model is called when the user gives no name."""
        module, _, attribute = (self.factory or "").partition(":")
        return self.backbone or f"{module.rpartition('.')[2]}.{attribute}"

    def preprocessing(
        self, size: int, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> Preprocessing:
        """Merge what the user gave with the classifier's own values.

        Args:
            size: Its side, pixels.
            mean: Per channel in pixel units.
            std: Likewise.
        """
        side = self.size or size
        return Preprocessing(side, side, self.resize, "RGB", self.mean or mean, self.std or std)


@dataclass(frozen=True)
class SplitConfig:
    """Where the classifier is cut.

    Attributes:
        cut: ``auto`` or the name of a cut.
        tune_from: Where fine-tuning of a backbone starts: a cut's name, or ``auto`` for the cut
            that ``auto`` would take with half of the multiply-accumulates. What lies before stays
            as pretrained.
        budget: Largest share of the multiply-accumulates that ``auto`` puts on the device.
        channels: Width of the bottleneck; None fits it to the message size.
    """

    cut: str = "auto"
    tune_from: str = "auto"
    budget: float = 0.5
    channels: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.budget <= 1:
            raise UsageError(f"--budget {self.budget} is outside 0 to 1")
        _at_least(1, channels=self.channels)


@dataclass(frozen=True)
class TrainingConfig:
    """How the halves are trained; None takes the trainer's own value.

    Attributes:
        views: Augmented views of each training photo.
        epochs: Passes over the training photos for the halves.
        tail_epochs: Passes for a backbone's tail.
        message_bytes: Mean message size to train for, header included.
        seed: Fixes augmentation, initial weights and order.
        processes: Worker processes for features; None means one a core.
    """

    views: int = 10
    epochs: int | None = None
    tail_epochs: int | None = None
    message_bytes: float | None = None
    seed: int = 0
    processes: int | None = None

    def __post_init__(self) -> None:
        _at_least(0, views=self.views)
        _at_least(1, epochs=self.epochs, tail_epochs=self.tail_epochs, processes=self.processes)
        _at_least(1, message_bytes=self.message_bytes)


@dataclass(frozen=True)
class QuantizationConfig:
    """Which engine files are made, and in what numbers.

    Attributes:
        targets: Architectures that get an int8 ONNX end model.
        tflite: Also make a TFLite end model.
        cloud_weights: How the bundle stores cloud half and full model: ``fp32``, ``fp16`` or
            ``int8``.
    """

    targets: tuple[str, ...] = TARGETS
    tflite: bool = True
    cloud_weights: str = "fp16"

    def __post_init__(self) -> None:
        if self.cloud_weights not in CLOUD_WEIGHTS:
            raise UsageError(
                f"cloud weights {self.cloud_weights!r} are not one of {', '.join(CLOUD_WEIGHTS)}"
            )
        for target in self.targets:
            if target not in TARGETS:
                raise UsageError(f"target {target!r} is not one of {', '.join(TARGETS)}")
        if not self.targets and not self.tflite:
            raise UsageError("no end model is left: give --targets, or drop --no-tflite")


@dataclass(frozen=True)
class BudgetConfig:
    """What may be lost.

    Attributes:
        accuracy: What hybrid accuracy may lose against cloud-only when T is chosen.
        max_device_share: Largest share that the device may answer itself on the calibration split.
        size_ratio: How many times smaller than its float twin an int8 end model must be.
    """

    accuracy: float = 0.005
    max_device_share: float = 1.0
    size_ratio: float = 3.5

    def __post_init__(self) -> None:
        _within(0, 1, max_device_share=self.max_device_share)


@dataclass(frozen=True)
class OutputConfig:
    """What is written.

    Attributes:
        folder: The bundle directory.
        name: Model name for people; None takes the model's own.
    """

    folder: Path
    name: str | None = None

    @property
    def work(self) -> Path:
        """Where stages keep what they made, so that a rerun resumes."""
        return self.folder.with_name(self.folder.name + ".work")


@dataclass(frozen=True)
class ExportConfig:
    """Everything that decides an export."""

    data: DataConfig
    model: ModelConfig
    output: OutputConfig
    split: SplitConfig = field(default_factory=SplitConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    quantization: QuantizationConfig = field(default_factory=QuantizationConfig)
    budgets: BudgetConfig = field(default_factory=BudgetConfig)

    @property
    def title(self) -> str:
        """The model's name for people."""
        return self.output.name or self.model.title

    def to_json(self) -> dict[str, Any]:
        """Return what the bundle records of how it was made; no paths of this machine."""
        model, split, training = self.model, self.split, self.training
        return {
            "model": model.factory,
            "backbone": model.backbone,
            "cut": split.cut,
            "tune_from": split.tune_from if model.backbone else None,
            "budget": split.budget,
            "channels": split.channels,
            "views": training.views,
            "epochs": training.epochs,
            "tail_epochs": training.tail_epochs,
            "message_bytes": training.message_bytes,
            "seed": training.seed,
            "accuracy_budget": self.budgets.accuracy,
            "max_device_share": self.budgets.max_device_share,
            "cloud_weights": self.quantization.cloud_weights,
        }
