"""``reference/selftest.npz``: a few photos as pixels, and what each end model answered to them.

The arrays are documented in ``docs/bundle-format.md``.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.bundle import Bundle
from edge_kit.bundle.split import EngineFile, Split
from edge_kit.errors import BundleError

__all__ = ["SELFTEST", "SelfTestPhotos", "encode_selftest", "read_selftest", "sample_pixels"]

SELFTEST = "reference/selftest.npz"
_NOISE = 4


@dataclass(frozen=True, eq=False)
class SelfTestPhotos:
    """Photos, and the classes that one end model gave them at the export.

    Attributes:
        pixels: uint8 (N, height, width, 3), N at least 1.
        labels: (N,).
    """

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


def read_selftest(bundle: Bundle, file: EngineFile) -> SelfTestPhotos | None:
    """Return the photos and the answers of an end model; None when the bundle has none of it.

    Raises:
        BundleError: They cannot be read.
    """
    arrays = _read(bundle)
    labels = arrays.get(f"{_key(bundle.index, bundle.split, file)}:labels")
    if labels is None:
        return None
    pixels = arrays.get("pixels", np.zeros(0, np.uint8))
    if not len(labels) or len(pixels) != len(labels):
        raise BundleError(f"{SELFTEST} of {bundle.root} has {len(pixels)} photos for "
                          f"{len(labels)} labels", "export it again")  # fmt: skip
    return SelfTestPhotos(pixels, labels)


def sample_pixels(bundle: Bundle) -> NDArray[np.uint8]:
    """Return the photos of the self-test, else noise; uint8 (N, height, width, 3).

    Raises:
        BundleError: The self-test cannot be read.
    """
    rule = bundle.manifest.preprocessing
    shape = (rule.height, rule.width, 3)
    pixels = _read(bundle).get("pixels")
    if pixels is not None and pixels.dtype == np.uint8 and pixels.shape[1:] == shape:
        return pixels
    return np.random.default_rng(0).integers(0, 256, (_NOISE, *shape), dtype=np.uint8)


def encode_selftest(
    pixels: NDArray[np.uint8],
    splits: Sequence[Split],
    answer: Callable[[EngineFile], Mapping[str, NDArray[Any]]],
) -> bytes:
    """Return the content of the file.

    Args:
        pixels: uint8 (N, height, width, 3).
        splits: All splits of the bundle, in order.
        answer: Gives ``features`` and ``logits`` (N, ...) of an end file for these photos.
    """
    arrays: dict[str, NDArray[Any]] = {"pixels": pixels}
    for index, split in enumerate(splits):
        for file in split.end:
            given, key = answer(file), _key(index, split, file)
            arrays[f"{key}:features"] = given["features"]
            arrays[f"{key}:logits"] = given["logits"]
            arrays[f"{key}:labels"] = given["logits"].argmax(1).astype(np.int64)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


def _key(index: int, split: Split, file: EngineFile) -> str:
    # The first split has the keys of schema 1; the others may share its files.
    return f"{split.name}:{file.path}" if index else file.path


def _read(bundle: Bundle) -> dict[str, NDArray[Any]]:
    if SELFTEST not in bundle.manifest.files:
        return {}
    try:
        with np.load(bundle.root / SELFTEST, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise BundleError(
            f"{SELFTEST} of {bundle.root} cannot be read ({error})", "export it again"
        ) from None
