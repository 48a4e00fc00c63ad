"""The second pass: what each half alone would have answered, and what a JPEG would have cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge_kit.bundle import Bundle
from edge_kit.engines.select import open_end_model, open_tail
from edge_kit.errors import SourceError
from edge_kit.pixels.jpeg import jpeg_size
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.labelled import LabelledPhoto
from edge_kit.sources.photo import read_photo
from edge_kit.tensors import to_layout
from edge_kit.wire import FeatureHeader, FeatureMessage

__all__ = ["HalfAnswers", "SecondPass", "second_pass"]


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
    """The device's engine, and what was found of each photo; None where it cannot be read."""

    engine: str
    photos: Sequence[HalfAnswers | None]


def second_pass(
    bundle: Bundle,
    photos: Sequence[LabelledPhoto],
    engine: str,
    on_progress: Callable[[int], None] = lambda _done: None,
) -> SecondPass:
    """Send every photo's features through the cloud half, without a network.

    `engine` is as the run was told: ``auto`` chooses the same one again. `on_progress` is told how
    many photos are done.

    Raises:
        EngineError, BundleError: A half cannot be loaded or fails.
    """
    end, tail = open_end_model(bundle, engine), open_tail(bundle)
    resize = Preprocessor(bundle.manifest.preprocessing)
    spec, wanted = end.feature_spec, tail.inputs["features"].layout
    header = FeatureHeader(bundle.manifest.wire_id, bundle.index, spec, bytes(8), 0, 0, 1.0)

    def look(photo: LabelledPhoto) -> HalfAnswers | None:
        try:
            image = read_photo(photo.path)
        except SourceError:
            return None
        out = end.infer(resize(image))
        batch = to_layout(out.features[None], spec.layout, wanted)
        logits = tail.run({"features": batch})["logits"][0]
        return HalfAnswers(
            device_label=bundle.rule.decide(out.logits).label,
            cloud_label=int(logits.argmax()),
            message_bytes=len(FeatureMessage(header, out.features).encode()),
            jpeg_bytes=jpeg_size(image, resize.rule),
        )

    try:
        found = []
        for photo in photos:
            found.append(look(photo))
            on_progress(len(found))
        return SecondPass(end.engine.name, found)
    finally:
        end.close()
        tail.close()
