"""The whole loop of the device at full speed, on photos or on frames of a camera's size."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_kit.bench.measure.measurement import Pipeline
from edge_kit.bundle import Bundle
from edge_kit.bundle.manifest import Manifest
from edge_kit.device.loop import Device
from edge_kit.device.output import JsonLines
from edge_kit.engines.end import EndModel
from edge_kit.errors import MissingExtraError, SourceError
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.folder import FolderSource
from edge_kit.sources.source import Frame, MemorySource, Source

__all__ = ["run_pipeline"]

CAMERA = (480, 640, 3)
_IMAGES = 8


def run_pipeline(
    bundle: Bundle, model: EndModel, photos: Path | None, frames: int, max_secs: float
) -> Pipeline:
    """Run the device without a broker: low-confidence answers are kept, nothing is sent.

    Args:
        bundle: Gives classes, preprocessing and exit rule.
        model: A loaded end model.
        photos: A folder of photos; without one frames are made up.
        frames: At most so many.
        max_secs: No frame begins after so long.

    Raises:
        EdgeKitError: Photos or engine fail.
    """
    inner: Source
    manifest = bundle.manifest
    if photos is None:
        inner, kind = MemorySource(_noise(manifest, frames)), "synthetic"
    else:
        inner, kind = FolderSource(photos), "photos"
    source = _Timed(inner, max_secs)
    with Path(os.devnull).open("w", encoding="utf-8") as nothing:
        device = Device(
            source,
            Preprocessor(manifest.preprocessing),
            model,
            bundle.rule,
            classes=manifest.classes,
            wire_id=manifest.wire_id,
            cut=bundle.index,
            sink=JsonLines(nothing),
        )
        source.device = device
        began = time.perf_counter()
        device.run(limit=frames)
        took = time.perf_counter() - began
    done = device.counters.frames
    if not done:
        raise SourceError(f"{inner.name} holds no frames")
    return Pipeline(done, round(done / took, 3), kind, device.stages.medians_ms())


class _Timed:
    """A source whose reading counts as a stage of the device."""

    live = False
    dropped = 0

    def __init__(self, source: Source, max_secs: float) -> None:
        self.name = source.name
        self.device: Device | None = None
        self._source = source
        self._end = time.perf_counter() + max_secs

    @property
    def skipped(self) -> int:
        return self._source.skipped

    def frames(self) -> Iterator[Frame]:
        assert self.device is not None
        frames = self._source.frames()
        while time.perf_counter() < self._end:
            began = time.perf_counter()
            frame = next(frames, None)
            if frame is None:
                return
            self.device.stages.add("source", time.perf_counter() - began)
            yield frame

    def close(self) -> None:
        self._source.close()


def _noise(manifest: Manifest, frames: int) -> list[NDArray[np.uint8]]:
    """Return frames as a camera gives them; of the model's size where nothing can resize."""
    rule = manifest.preprocessing
    dice = np.random.default_rng(0)
    size = CAMERA
    try:
        Preprocessor(rule)(np.zeros(size, np.uint8))
    except MissingExtraError:
        size = (rule.height, rule.width, 3)
    images = [dice.integers(0, 256, size, dtype=np.uint8) for _ in range(_IMAGES)]
    return [images[n % len(images)] for n in range(frames)]
