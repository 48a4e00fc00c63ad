"""How many photos were answered as they should, and which photos those were."""

from __future__ import annotations

from dataclasses import dataclass

from edge_kit.intervals import wilson

__all__ = ["LabelledSet", "Score"]


@dataclass(frozen=True)
class Score:
    """How many photos were answered as they should.

    Attributes:
        right: Photos with the wanted answer.
        total: Photos, at least 1.
        low: Lower end of the 95 % interval of the share (Wilson, 1927).
        high: Upper end.
    """

    right: int
    total: int
    low: float
    high: float

    def __post_init__(self) -> None:
        """Refuse no photos, which have no share."""
        if self.total < 1:
            raise ValueError("total must be at least 1")

    @classmethod
    def of(cls, right: int, total: int) -> Score:
        """Count, and add the interval."""
        low, high = wilson(right, total)
        return cls(right, total, round(low, 4), round(high, 4))

    @property
    def share(self) -> float:
        """Share of right answers, 0 to 1."""
        return self.right / self.total


@dataclass(frozen=True)
class LabelledSet:
    """Photos whose class is known: which they are.

    Attributes:
        source: ``bundle`` (its reference set) or ``photos`` (a folder).
        split: Of the data set that a bundle's photos are from; empty where it is not told.
        sha256: Name of the set, see `edge_kit.bundle.labelled_photos.photo_set_digest`.
        labels: Index of each photo's class, photos ordered by the SHA-256 of their files.
    """

    source: str
    split: str
    sha256: str
    labels: tuple[int, ...]

    @property
    def title(self) -> str:
        """Return it for people."""
        if self.source != "bundle":
            of = "given photos"
        else:
            of = f"photos of the bundle's {self.split} split" if self.split else "bundled photos"
        return f"{len(self.labels)} {of} (set {self.sha256[:8]})"
