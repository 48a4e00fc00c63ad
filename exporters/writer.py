"""Write a bundle directory in one step, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import Bundle
from edge_kit.exits import CurvePoint, ExitRule
from edge_kit.manifest import Cut, Preprocessing
from exporters.exported import Exported

__all__ = ["write_bundle"]


def write_bundle(
    out: Path,
    *,
    name: str,
    classes: Sequence[str],
    preprocessing: Preprocessing,
    cuts: Sequence[Cut],
    files: Sequence[Exported],
    exit_rule: ExitRule,
    curve: Sequence[CurvePoint] = (),
    selftest: NDArray[np.uint8] | None = None,
    extra: Mapping[str, Path | bytes] | None = None,
    figures: Mapping[str, Any] | None = None,
) -> Bundle:
    """Write the bundle to `out` and open it.

    Args:
        out: The directory; replaced when it already holds a bundle.
        name: Model name, for people.
        classes: Class names in label order.
        preprocessing: How photos become pixels.
        cuts: Usually one.
        files: Engine files, in order of preference.
        exit_rule: What the device applies.
        curve: The threshold sweep.
        selftest: A few photos as pixels (N, h, w, 3); each end file's features and logits on
            them are stored in ``reference/selftest.npz``.
        extra: More files (bundle path -> file or content), such as ``report.html``.
        figures: What the exporter measured of the whole.
    """
    raise NotImplementedError
