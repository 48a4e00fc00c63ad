"""Compare an end model's answers on this machine with those that it gave at the export.

Engines round differently from CPU to CPU, so decisions are compared, never bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from edge_kit.bundle import Bundle
from edge_kit.bundle.selftest import read_selftest
from edge_kit.engines.end import EndModel

__all__ = ["SelfTest", "self_test"]

# A kernel that saturates or a wrong layout changes most answers; rounding may flip one or two.
_MIN_SHARE = 0.75


@dataclass(frozen=True)
class SelfTest:
    """What a self-test found.

    Attributes:
        agree: Photos with the answer of the export.
        total: Photos, at least 1.
    """

    agree: int
    total: int

    @property
    def passed(self) -> bool:
        """Return whether so many agree that the rest may be rounding."""
        return self.agree >= _MIN_SHARE * self.total


def self_test(bundle: Bundle, model: EndModel) -> SelfTest | None:
    """Run the reference photos of a bundle; None when it holds none for this file.

    Raises:
        BundleError: The references cannot be read.
        EngineError: The engine fails on them.
    """
    photos = read_selftest(bundle, model.file)
    if photos is None:
        return None
    same = [
        int(model.classify(pixels).argmax()) == int(label)
        for pixels, label in zip(photos.pixels, photos.labels, strict=True)
    ]
    return SelfTest(sum(same), len(same))
