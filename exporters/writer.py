"""Write a bundle directory in one step, or not at all.

Everything is written to a directory beside the target, opened and checked as a board would, and
then renamed: a crash leaves the old bundle or the new one, never half of one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import MANIFEST, Bundle
from edge_kit.bundle.cache import lies_outside
from edge_kit.bundle.manifest import Manifest, Preprocessing, StoredFile
from edge_kit.bundle.selftest import SELFTEST, encode_selftest
from edge_kit.bundle.split import EngineFile, Split
from edge_kit.errors import ExportError, UsageError
from exporters.engines.exported import Exported

__all__ = ["LABELS", "check_target", "write_bundle"]

LABELS = "labels.txt"


def write_bundle(
    out: Path,
    *,
    name: str,
    classes: Sequence[str],
    preprocessing: Preprocessing,
    splits: Sequence[Split],
    files: Sequence[Exported],
    selftest: NDArray[np.uint8] | None = None,
    reference: Mapping[str, bytes] | None = None,
    extra: Mapping[str, Path | bytes] | None = None,
    figures: Mapping[str, Any] | None = None,
) -> Bundle:
    """Write the bundle to `out` and open it.

    Args:
        out: The directory; replaced when it already holds a bundle, refused when it holds
            anything else.
        name: Model name, for people.
        classes: Class names in label order.
        preprocessing: How photos become pixels.
        splits: At least one, of these files; the first is the one that devices take by default.
        files: The model files. One that several splits share is stored once.
        selftest: A few photos as pixels (N, h, w, 3); each end file's features and logits on
            them are stored in ``reference/selftest.npz``.
        reference: Labelled photos and their index, see
            `exporters.data.bundle_photos.encode_reference`.
        extra: More files (bundle path to file or content), such as ``report.html``.
        figures: What the exporter measured of the whole, as JSON values.

    Raises:
        ExportError: `out` is in the way, or cannot be written.
        BundleError: What was written is not valid.
    """
    check_target(out)
    contents: dict[str, Path | bytes] = {LABELS: "".join(f"{c}\n" for c in classes).encode()}
    if selftest is not None:
        pixels = selftest

        def answer(entry: EngineFile) -> Mapping[str, NDArray[Any]]:
            return next(f for f in files if f.entry == entry)(pixels)

        contents[SELFTEST] = encode_selftest(pixels, splits, answer)
    contents.update({**(reference or {}), **(extra or {})})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as work:
            root = Path(work) / "bundle"
            for path, content in contents.items():
                _place(root, path, content)
            for path, source in {f.entry.path: f.source for f in files}.items():
                _place(root, path, source)
            manifest = Manifest(
                name=name,
                classes=tuple(classes),
                preprocessing=preprocessing,
                splits=tuple(splits),
                full=tuple(f.entry for f in files if f.entry.role == "full"),
                files={path: StoredFile.of(root / path) for path in contents},
                figures=dict(figures or {}),
            )
            text = json.dumps(manifest.to_json(), indent=1) + "\n"
            _place(root, MANIFEST, text.encode())
            Bundle.open(root)
            _swap(root, out, Path(work) / "old")
    except OSError as error:
        raise ExportError(
            f"cannot write the bundle to {out}: {error.strerror or error}",
            "check free space and permissions",
        ) from error
    return Bundle.open(out)


def check_target(out: Path) -> None:
    """Refuse a directory that a bundle cannot take.

    Raises:
        UsageError: It has no name of its own, such as ``.``.
        ExportError: It is a file, or holds anything but a bundle.
    """
    if out.name in ("", ".."):
        raise UsageError(f"--out {out} names no directory of its own", "for example ./bundle")
    if not out.exists():
        return
    if not out.is_dir():
        raise ExportError(f"{out} is a file", "name a directory for the bundle")
    if any(out.iterdir()) and not (out / MANIFEST).exists():
        raise ExportError(
            f"{out} is not empty and is not a bundle", "name another directory, or empty it"
        )


def _place(root: Path, path: str, content: Path | bytes) -> None:
    if lies_outside(path):
        raise ExportError(
            f"{path!r} would lie outside the bundle", "name it relative to the bundle"
        )
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        raise ExportError(f"two files of the bundle are called {path}", "rename one")
    if isinstance(content, bytes):
        target.write_bytes(content)
    else:
        shutil.copyfile(content, target)
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _swap(root: Path, out: Path, old: Path) -> None:
    """Rename `root` to `out`; what was there goes to `old`, or back when that fails."""
    if not out.exists():
        root.rename(out)
        return
    out.rename(old)
    try:
        root.rename(out)
    except OSError:
        old.rename(out)
        raise
