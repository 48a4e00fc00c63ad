"""What the exported files answer on one split, and the figures that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.exits import ExitRule, normalized_entropy, softmax
from edge_kit.intervals import wilson
from edge_kit.tensors import TensorSpec
from edge_kit.wire import FeatureHeader, FeatureMessage
from exporters.data.decoded import DecodedPhotos
from exporters.engines.exported import Exported
from exporters.progress import Tick, ignore

__all__ = ["Outcome", "Share", "measure", "message_size"]

_CHUNK = 64


@dataclass(frozen=True)
class Share:
    """A measured share with its 95 % Wilson interval.

    Attributes:
        right: Successes.
        n: Samples.
    """

    right: int
    n: int

    @property
    def value(self) -> float:
        """The share, 0 to 1."""
        return self.right / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper bound, 0 to 1."""
        return wilson(self.right, self.n)

    def to_json(self) -> dict[str, Any]:
        """Return value, bounds and sample count."""
        low, high = self.interval
        return {"value": self.value, "low": low, "high": high, "n": self.n}


@dataclass(frozen=True)
class Outcome:
    """Answers on one split, one row a photo.

    Attributes:
        labels: True classes, (N,).
        device: The int8 end model's logits, (N, classes).
        cloud: The cloud half's logits on that end model's features, (N, classes).
        full: The unsplit float model's logits, (N, classes).
        message_bytes: Size of the photo's feature message, header included, (N,).
        jpeg_bytes: Size of each photo as JPEG quality 75 at the model's input size, (N,).
    """

    labels: NDArray[np.int64]
    device: NDArray[np.float32]
    cloud: NDArray[np.float32]
    full: NDArray[np.float32]
    message_bytes: NDArray[np.int64]
    jpeg_bytes: NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Write all arrays to one ``.npz``."""
        np.savez(path, **{f.name: getattr(self, f.name) for f in fields(self)})

    @classmethod
    def load(cls, path: Path) -> Outcome:
        """Read what `save` wrote."""
        with np.load(path) as data:
            return cls(**{f.name: data[f.name] for f in fields(cls)})

    def entropy(self, rule: ExitRule) -> NDArray[np.float64]:
        """Return the device's normalized entropies, (N,)."""
        return normalized_entropy(softmax(self.device, rule.temperature))

    def exits(self, rule: ExitRule) -> NDArray[np.bool_]:
        """Return which photos the device answers itself, (N,)."""
        return np.asarray(self.entropy(rule) <= rule.threshold)

    def decisions(self, rule: ExitRule) -> NDArray[np.int64]:
        """Return the hybrid's final labels, (N,)."""
        return np.where(self.exits(rule), self.device.argmax(1), self.cloud.argmax(1))

    def share(self, decided: NDArray[np.int64]) -> Share:
        """Return the top-1 of some decisions."""
        return Share(int((decided == self.labels).sum()), len(self.labels))

    def figures(self, rule: ExitRule) -> dict[str, Any]:
        """Return the figures that a bundle records."""
        exits = self.exits(rule)
        sent = self.message_bytes[~exits]
        jpeg = float(self.jpeg_bytes.mean())
        bytes_sent = float(sent.mean()) if len(sent) else None
        return {
            "photos": len(self.labels),
            "device_share": Share(int(exits.sum()), len(exits)).to_json(),
            "accuracy": {
                "device": self.share(self.device.argmax(1)).to_json(),
                "cloud": self.share(self.cloud.argmax(1)).to_json(),
                "hybrid": self.share(self.decisions(rule)).to_json(),
                "full": self.share(self.full.argmax(1)).to_json(),
            },
            "bytes_per_offloaded": bytes_sent,
            "bytes_per_message": float(self.message_bytes.mean()),
            "jpeg_bytes": jpeg,
            "jpeg_ratio": jpeg / bytes_sent if bytes_sent else None,
        }


def measure(
    end: Exported,
    tail: Exported,
    full: Exported,
    photos: DecodedPhotos,
    features: TensorSpec,
    tick: Tick = ignore,
) -> Outcome:
    """Run photos through the exported files as device and worker would.

    Args:
        end: The int8 end model.
        tail: The cloud half.
        full: The whole float model.
        photos: Of one split.
        features: The cut's spec, NCHW.
        tick: Told photos done and photos in total.
    """
    device, cloud, unsplit = [], [], []
    sizes: list[int] = []
    pixels = photos.pixels
    for start in range(0, len(pixels), _CHUNK):
        part = pixels[start : start + _CHUNK]
        answer = end(part)
        device.append(answer["logits"])
        cloud.append(tail(answer["features"])["logits"])
        unsplit.append(full(part)["logits"])
        sizes += message_size(answer["features"], features)
        tick(start + len(part), len(pixels))
    return Outcome(
        labels=photos.labels,
        device=np.concatenate(device),
        cloud=np.concatenate(cloud),
        full=np.concatenate(unsplit),
        message_bytes=np.array(sizes, np.int64),
        jpeg_bytes=np.asarray(photos.jpeg_bytes),
    )


def message_size(features: NDArray[Any], spec: TensorSpec) -> Sequence[int]:
    """Return the bytes of each sample's message on the wire; features (N, *spec.shape)."""
    header = FeatureHeader(bytes(8), 0, spec, bytes(8), 0, 0, 0.0)
    return [len(FeatureMessage(header, row).encode()) for row in features]
