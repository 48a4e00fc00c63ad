"""What an export is asked to do: one frozen dataclass, resolved once by the command line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import UsageError

__all__ = ["CLOUD_WEIGHTS", "IMAGENET_MEAN", "IMAGENET_STD", "TARGETS", "ExportConfig"]

TARGETS = ("x86_64", "aarch64")
CLOUD_WEIGHTS = ("fp32", "fp16", "int8")
# The usual torchvision constants, in pixel units.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


@dataclass(frozen=True)
class ExportConfig:
    """Everything that decides an export.

    Attributes:
        data: Folder of photos, a folder per class.
        out: Bundle directory to write.
        model: ``package.module:factory`` of a trained classifier, or None with `backbone`.
        weights: State dict for `model`; None when the factory returns a trained model.
        backbone: Name of a pretrained backbone for people who have only photos.
        name: Model name for people; by default made from `model` or `backbone`.
        size: Side of the square input, pixels; None takes the backbone's, else 224.
        resize: ``squash`` or ``crop``.
        mean: Per channel, pixel units; None takes the backbone's, else ImageNet's.
        std: Likewise.
        cut: ``auto`` or the name of a cut.
        tune_from: Where fine-tuning of a backbone starts: a cut's name, or ``auto`` for the cut
            that ``auto`` would take with half of the multiply-accumulates. What lies before stays
            as pretrained.
        budget: Most of the full model's multiply-accumulates that ``auto`` puts on the device.
        channels: Width of the bottleneck; None fits it to the message size.
        targets: Architectures that get an int8 ONNX end model.
        tflite: Also make a TFLite end model.
        cloud_weights: How the bundle stores cloud half and full model: ``fp32``, ``fp16`` or
            ``int8``.
        views: Augmented views of each training photo.
        epochs: Passes over the training photos for the halves; None takes the trainer's own.
        tail_epochs: Passes for a backbone's tail; None takes the trainer's own.
        message_bytes: Mean message size to train for, header included; None likewise.
        accuracy_budget: What hybrid accuracy may lose against cloud-only when T is chosen.
        max_device_share: Most that the device may answer itself on the calibration split.
        size_ratio: How many times smaller than its float twin an int8 end model must be.
        reference_photos: Labelled photos of the test split that the bundle carries.
        seed: Fixes augmentation, initial weights and order.
        processes: Worker processes for features; None means one a core.
    """

    data: Path
    out: Path
    model: str | None = None
    weights: Path | None = None
    backbone: str | None = None
    name: str | None = None
    size: int | None = None
    resize: str = "squash"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    cut: str = "auto"
    tune_from: str = "auto"
    budget: float = 0.5
    channels: int | None = None
    targets: tuple[str, ...] = TARGETS
    tflite: bool = True
    cloud_weights: str = "fp16"
    views: int = 10
    epochs: int | None = None
    tail_epochs: int | None = None
    message_bytes: float | None = None
    accuracy_budget: float = 0.005
    max_device_share: float = 1.0
    size_ratio: float = 3.5
    reference_photos: int = 100
    seed: int = 0
    processes: int | None = None

    def __post_init__(self) -> None:
        if (self.model is None) == (self.backbone is None):
            raise UsageError(
                "an export takes either a MODEL (package.module:factory) or --backbone",
                "give exactly one of them",
            )
        if self.backbone is not None and self.weights is not None:
            raise UsageError("--weights belongs to a MODEL, a --backbone brings its own")
        if self.size is not None and not 16 <= self.size <= 1024:
            raise UsageError(f"--size {self.size} lies outside 16 to 1024 pixels")
        if not 0 < self.budget <= 1:
            raise UsageError(f"--budget {self.budget} lies outside 0 to 1")
        if self.channels is not None and self.channels < 1:
            raise UsageError(f"--channels {self.channels} leaves no features to send")
        for flag in ("views", "reference_photos"):
            if getattr(self, flag) < 0:
                raise UsageError(f"--{flag.replace('_', '-')} {getattr(self, flag)} is below 0")
        for flag in ("epochs", "tail_epochs", "message_bytes", "processes"):
            given = getattr(self, flag)
            if given is not None and given < 1:
                raise UsageError(f"--{flag.replace('_', '-')} {given} is below 1")
        if not 0 <= self.max_device_share <= 1:
            raise UsageError(f"--max-device-share {self.max_device_share} lies outside 0 to 1")
        if self.cloud_weights not in CLOUD_WEIGHTS:
            raise UsageError(
                f"cloud weights {self.cloud_weights!r} are not one of {', '.join(CLOUD_WEIGHTS)}"
            )
        for target in self.targets:
            if target not in TARGETS:
                raise UsageError(f"target {target!r} is not one of {', '.join(TARGETS)}")
        if not self.targets and not self.tflite:
            raise UsageError("no end model is left: give --targets, or drop --no-tflite")

    @property
    def work(self) -> Path:
        """Where stages keep what they made, so that a rerun resumes."""
        return self.out.with_name(self.out.name + ".work")

    @property
    def title(self) -> str:
        """The model's name for people."""
        if self.name:
            return self.name
        if self.backbone:
            return self.backbone
        assert self.model is not None
        module, _, attribute = self.model.partition(":")
        return f"{module.rpartition('.')[2]}.{attribute}"

    @property
    def workers(self) -> int:
        """Processes for feature extraction."""
        return self.processes or len(os.sched_getaffinity(0))

    def preprocessing(
        self, size: int, mean: tuple[float, ...], std: tuple[float, ...]
    ) -> Preprocessing:
        """Merge what the user gave with the model's own defaults.

        Args:
            size: Default side, pixels.
            mean: Default, per channel in pixel units.
            std: Default, likewise.
        """
        side = self.size or size
        return Preprocessing(side, side, self.resize, "RGB", self.mean or mean, self.std or std)

    def to_json(self) -> dict[str, Any]:
        """Return what the bundle records of how it was made; no paths of this machine."""
        return {
            "model": self.model,
            "backbone": self.backbone,
            "cut": self.cut,
            "tune_from": self.tune_from if self.backbone else None,
            "budget": self.budget,
            "channels": self.channels,
            "views": self.views,
            "epochs": self.epochs,
            "tail_epochs": self.tail_epochs,
            "message_bytes": self.message_bytes,
            "seed": self.seed,
            "accuracy_budget": self.accuracy_budget,
            "max_device_share": self.max_device_share,
            "cloud_weights": self.cloud_weights,
        }
