"""The cloud halves that one worker holds, found by what a message says of itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from edge_kit.bundle import Bundle
from edge_kit.engines import Engine
from edge_kit.engines.select import open_tail
from edge_kit.errors import BundleError
from edge_kit.tensors import TensorSpec

_log = logging.getLogger(__name__)

__all__ = ["Models", "OpenTail", "Tail", "open_models"]

OpenTail = Callable[[Bundle, int], Engine]
"""Opens the cloud half of a bundle's split with a number of threads."""


@dataclass(frozen=True)
class Tail:
    """One loaded cloud half.

    Attributes:
        model: The 8 bytes that messages carry.
        cut: Index of the split that it continues, as messages carry it.
        name: The model's name, for people.
        features: What the manifest says crosses the network at this split.
        classes: Number of classes.
        engine: Takes ``features``, gives ``logits``.
    """

    model: bytes
    cut: int
    name: str
    features: TensorSpec
    classes: int
    engine: Engine

    @property
    def layout(self) -> str:
        """The layout that the engine takes features in."""
        return self.engine.inputs["features"].layout


@dataclass(frozen=True)
class Models:
    """All cloud halves of a worker.

    Attributes:
        tails: By wire id and index of the split.
    """

    tails: Mapping[tuple[bytes, int], Tail]

    def __post_init__(self) -> None:
        if not self.tails:
            raise ValueError("a worker needs at least one cloud half")

    @cached_property
    def max_values(self) -> int:
        """Values of the largest sample that any tail takes."""
        return max(t.features.size for t in self.tails.values())

    @cached_property
    def max_bytes(self) -> int:
        """Bytes of the largest sample that any tail takes, unpacked."""
        return max(t.features.nbytes for t in self.tails.values())

    def knows(self, model: bytes) -> bool:
        """Return whether any split of `model` is here."""
        return any(known == model for known, _cut in self.tails)

    def find(self, model: bytes, cut: int) -> Tail | None:
        """Return the tail for a message; None when this worker has none."""
        return self.tails.get((model, cut))

    def close(self) -> None:
        """Free every engine."""
        for tail in self.tails.values():
            tail.engine.close()


def open_models(paths: Iterable[Path], threads: int, *, open_tail: OpenTail = open_tail) -> Models:
    """Open bundles and load the cloud half of each of their splits.

    Args:
        paths: Bundles, as directories or packed files.
        threads: Threads of each engine. Engines run one at a time, so they share the cores.
        open_tail: How to load one; injected by tests.

    Raises:
        BundleError: A bundle is not valid or has no cloud half.
        EngineError: A cloud half cannot be loaded.
    """
    tails: dict[tuple[bytes, int], Tail] = {}
    for path in paths:
        bundle = Bundle.open(path)
        manifest = bundle.manifest
        if all(split.tail is None for split in manifest.splits):
            raise BundleError(f"{path} has no cloud half", "export it again with a tail")
        for index, split in enumerate(manifest.splits):
            if split.tail is None:
                continue
            if (manifest.wire_id, index) in tails:
                _log.warning("%s holds a model that another bundle here holds too", path)
                continue
            tails[manifest.wire_id, index] = Tail(
                model=manifest.wire_id,
                cut=index,
                name=manifest.name,
                features=split.features,
                classes=len(manifest.classes),
                engine=open_tail(bundle.using(split.name), threads),
            )
    return Models(tails)
