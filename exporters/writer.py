"""Write a bundle directory in one step, or not at all.

Everything is written to a directory beside the target, opened and checked as a board would, and
then renamed: a crash leaves the old bundle or the new one, never half of one.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import MANIFEST, Bundle, sha256_file
from edge_kit.bundle.manifest import Cut, Manifest, Preprocessing
from edge_kit.errors import ExportError, UsageError
from edge_kit.exits import CurvePoint, ExitRule
from exporters.engines.exported import Exported

__all__ = ["LABELS", "SELFTEST", "check_target", "write_bundle"]

LABELS = "labels.txt"
SELFTEST = "reference/selftest.npz"


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
        cuts: Usually one.
        files: Engine files, in order of preference.
        exit_rule: What the device applies.
        curve: The threshold sweep.
        selftest: A few photos as pixels (N, h, w, 3); each end file's features and logits on
            them are stored in ``reference/selftest.npz``.
        reference: Labelled photos and their index, see
            `exporters.data.bundle_photos.encode_reference`.
        extra: More files (bundle path to file or content), such as ``report.html``.
        figures: What the exporter measured of the whole, as JSON values.

    Raises:
        ExportError: `out` is in the way, or cannot be written.
        BundleError: What was written is not sound.
    """
    check_target(out)
    contents: dict[str, Path | bytes] = {LABELS: "".join(f"{c}\n" for c in classes).encode()}
    if selftest is not None:
        contents[SELFTEST] = _selftest(files, selftest)
    contents.update({**(reference or {}), **(extra or {})})
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as work:
            root = Path(work) / "bundle"
            for path, content in contents.items():
                _place(root, path, content)
            for file in files:
                _place(root, file.entry.path, file.source)
            manifest = Manifest(
                name=name,
                classes=tuple(classes),
                preprocessing=preprocessing,
                cuts=tuple(cuts),
                engines=tuple(f.entry for f in files),
                exit=exit_rule,
                curve=tuple(curve),
                files={path: sha256_file(root / path) for path in contents},
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
            f"{out} is not empty and holds no bundle", "name another directory, or empty it"
        )


def _place(root: Path, path: str, content: Path | bytes) -> None:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\\" in path:
        raise ExportError(f"{path!r} does not lie inside the bundle")
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


def _selftest(files: Sequence[Exported], pixels: NDArray[np.uint8]) -> bytes:
    """Return an npz: ``pixels``, and ``<path>:features|logits|labels`` of each end file."""
    arrays: dict[str, NDArray[Any]] = {"pixels": pixels}
    for file in files:
        if file.entry.role != "end":
            continue
        given = file(pixels)
        arrays[f"{file.entry.path}:features"] = given["features"]
        arrays[f"{file.entry.path}:logits"] = given["logits"]
        arrays[f"{file.entry.path}:labels"] = given["logits"].argmax(1).astype(np.int64)
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()
