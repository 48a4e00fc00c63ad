"""The second pass: what each half alone would have answered, and what a JPEG would have cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import Bundle
from edge_kit.engines.end import EndModel
from edge_kit.engines.engine import Engine
from edge_kit.engines.select import open_end_model, open_tail
from edge_kit.errors import SourceError
from edge_kit.pixels.jpeg import jpeg_size
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.labelled import LabelledPhoto
from edge_kit.sources.photo import read_photo
from edge_kit.tensors import to_layout
from edge_kit.wire import FeatureHeader, FeatureMessage

__all__ = ["HalfAnswers", "SecondPass", "second_pass"]

_BATCH = 16


@dataclass(frozen=True)
class HalfAnswers:
    """What was found of one photo apart from the run.

    Attributes:
        device_label: The device's answer.
        cloud_label: The answer of the cloud half from the same features.
        message_bytes: Size of its feature message, header included.
        jpeg_bytes: Size of the photo as JPEG of quality 75, see `edge_kit.pixels.jpeg.jpeg_size`.
    """

    device_label: int
    cloud_label: int
    message_bytes: int
    jpeg_bytes: int


@dataclass(frozen=True)
class SecondPass:
    """What `second_pass` found.

    Attributes:
        engine: The device's engine.
        photos: One a photo, in order; None for a photo that cannot be read.
    """

    engine: str
    photos: Sequence[HalfAnswers | None]


def second_pass(
    bundle: Bundle,
    photos: Sequence[LabelledPhoto],
    engine: str,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> SecondPass:
    """Send every photo's features through the cloud half, without a network.

    Args:
        bundle: The bundle of the run.
        photos: What was played.
        engine: As the run was told; ``auto`` chooses the same one again.
        on_progress: Told how many photos are done.

    Raises:
        EngineError, BundleError: A half cannot be loaded or fails.
    """
    end, tail = open_end_model(bundle, engine), open_tail(bundle)
    try:
        device = _DeviceSide(bundle, end)
        found: list[HalfAnswers | None] = []
        for start in range(0, len(photos), _BATCH):
            seen = [device.look(photo) for photo in photos[start : start + _BATCH]]
            labels = iter(_cloud_labels(tail, end, [s.features for s in seen if s is not None]))
            for s in seen:
                found.append(
                    HalfAnswers(s.label, next(labels), s.message_bytes, s.jpeg_bytes) if s else None
                )
            on_progress(len(found))
        return SecondPass(end.engine.name, found)
    finally:
        end.close()
        tail.close()


@dataclass(frozen=True, eq=False)
class _Seen:
    features: NDArray[np.generic]
    label: int
    message_bytes: int
    jpeg_bytes: int


class _DeviceSide:
    def __init__(self, bundle: Bundle, end: EndModel) -> None:
        self._end = end
        self._resize = Preprocessor(bundle.manifest.preprocessing)
        self._rule = bundle.rule
        self._header = FeatureHeader(
            bundle.manifest.wire_id, bundle.index, end.feature_spec, bytes(8), 0, 0, 1.0
        )

    def look(self, photo: LabelledPhoto) -> _Seen | None:
        try:
            image = read_photo(photo.path)
        except SourceError:
            return None
        out = self._end.infer(self._resize(image))
        features = out.features.copy()  # the engine may use its buffer again
        size = len(FeatureMessage(self._header, features).encode())
        jpeg_bytes = jpeg_size(image, self._resize.rule)
        return _Seen(features, self._rule.decide(out.logits).label, size, jpeg_bytes)


def _cloud_labels(tail: Engine, end: EndModel, features: list[NDArray[np.generic]]) -> list[int]:
    if not features:
        return []
    spec = tail.inputs["features"]
    batch = to_layout(np.stack(features), end.feature_spec.layout, spec.layout)
    return [int(n) for n in tail.run({"features": batch})["logits"].argmax(axis=1)]
