"""What a child process measures: one configuration, and how thoroughly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edge_kit.bundle import Bundle

__all__ = ["Effort", "Task"]

# Loading on the slowest board, with a cold card.
_START_S = 300.0
_SECONDS_A_PHOTO = 15.0
_MOST_PHOTOS = 10_000


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        runs: Calls that count.
        warmup: Calls before them.
        max_secs: Most seconds for each of warm-up, calls and pipeline.
        frames: Most frames of the pipeline.
        photos: A folder for each class; None for the bundle's own labelled photos.
        limit: Most photos for top-1; None for all.
        profile: Ask engines for the time of each operator.
        top1: Classify labelled photos, which takes a while on a slow board.
    """

    runs: int = 200
    warmup: int = 10
    max_secs: float = 60.0
    frames: int = 100
    photos: Path | None = None
    limit: int | None = None
    profile: bool = False
    top1: bool = True

    def timeout_s(self, bundle: Bundle) -> float:
        """Return when a child must have answered."""
        # Without a folder there are the bundle's own photos, fewer than it has files.
        most = len(bundle.manifest.files) if self.photos is None else _MOST_PHOTOS
        photos = min(most, self.limit or most) if self.top1 else 0
        return _START_S + 4 * self.max_secs + _SECONDS_A_PHOTO * photos


@dataclass(frozen=True)
class Task:
    """One model file of a bundle, and the threads of its engine."""

    bundle: Path
    split: str
    file: str
    threads: int
    effort: Effort = field(default_factory=Effort)
