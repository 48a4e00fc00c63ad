"""One exported model file: what the manifest says of it, and a way to run it for parity checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import sha256_file
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.engine import Engine
from edge_kit.engines.image_input import image_batch
from edge_kit.engines.load import ENGINES
from edge_kit.host.board import available_cores
from edge_kit.tensors import TensorSpec, dequantize, to_layout
from exporters.quiet import quiet

__all__ = ["Exported", "describe"]

FOLDERS = {"end": "end", "tail": "cloud", "full": "cloud"}
BATCH = 32


@dataclass(frozen=True)
class Exported:
    """A model file as an exporter left it; call it to run it.

    Attributes:
        source: Where the file lies now.
        entry: Its line in the manifest; ``entry.path`` is its place inside the bundle.
    """

    source: Path
    entry: EngineFile

    def __call__(self, batch: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run any number of samples.

        Args:
            batch: uint8 pixels (N, height, width, 3) for ``end`` and ``full``; raw features
                (N, C, h, w) as the end model gave them for ``tail``.

        Returns:
            ``logits`` as float32 (N, classes), dequantized when the file gives integers, and for
            an end model ``features`` as the file gives them (raw int8), in NCHW order.
        """
        (spec,) = self.entry.inputs
        if spec.name == "image":
            batch = image_batch(batch, spec)
        else:
            batch = to_layout(batch.astype(spec.dtype, copy=False), "NCHW", spec.layout)
        parts = [
            self._engine.run({spec.name: batch[i : i + BATCH]}) for i in range(0, len(batch), BATCH)
        ]
        out: dict[str, NDArray[Any]] = {}
        for given in self.entry.outputs:
            values = np.concatenate([part[given.name] for part in parts])
            if given.name == "features":
                out["features"] = to_layout(values, given.layout, "NCHW")
            else:
                out[given.name] = dequantize(values, given)
        return out

    def with_figures(self, **figures: Any) -> Exported:
        """Return the same file with more measured figures in its manifest line."""
        merged = {**self.entry.figures, **figures}
        return replace(self, entry=replace(self.entry, figures=merged))

    @cached_property
    def _engine(self) -> Engine:
        """The engine that a device runs, here on all cores."""
        with quiet():  # LiteRT announces its delegate
            return ENGINES[self.entry.engine](self.source, self.entry, available_cores())


def describe(
    source: Path,
    *,
    role: str,
    engine: str,
    arch: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    requires: Mapping[str, Any],
) -> Exported:
    """Hash a written model file and describe it for the manifest."""
    entry = EngineFile(
        path=f"{FOLDERS[role]}/{source.name}",
        role=role,
        engine=engine,
        arch=arch,
        sha256=sha256_file(source),
        size=source.stat().st_size,
        inputs=inputs,
        outputs=outputs,
        requires=requires,
    )
    return Exported(source, entry)
