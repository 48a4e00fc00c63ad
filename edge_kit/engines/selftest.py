"""Compare an end model's answers on this machine with those that it gave at the export.

Engines round differently from CPU to CPU, so decisions are compared, never bits.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass

import numpy as np

from edge_kit.bundle import Bundle
from edge_kit.engines.end import EndModel
from edge_kit.errors import EngineError

__all__ = ["SELFTEST", "SelfTest", "self_test"]

# ``pixels`` (N, h, w, 3) uint8, and for each end file ``<path>:labels`` (N,): docs/bundle-format.md
SELFTEST = "reference/selftest.npz"

# A kernel that saturates or a wrong layout changes most answers; a doubtful photo or two may flip.
_LEAST_SHARE = 0.75


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
        return self.agree >= _LEAST_SHARE * self.total


def self_test(bundle: Bundle, model: EndModel) -> SelfTest | None:
    """Run the reference photos of a bundle; None when it holds none for this file.

    Raises:
        EngineError: The references cannot be read, or the engine fails on them.
    """
    if SELFTEST not in bundle.manifest.files:
        return None
    key = f"{model.file.path}:labels"
    try:
        with np.load(bundle.root / SELFTEST, allow_pickle=False) as arrays:
            if key not in arrays:
                return None
            pixels, labels = arrays["pixels"], arrays[key]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise EngineError(f"{SELFTEST} of {bundle.root} cannot be read ({error})") from None
    if not len(labels) or len(pixels) != len(labels):
        raise EngineError(f"{SELFTEST} of {bundle.root} holds no matching photos and labels")
    same = [
        int(model.infer(p).logits.argmax()) == int(want)
        for p, want in zip(pixels, labels, strict=True)
    ]
    return SelfTest(sum(same), len(same))
