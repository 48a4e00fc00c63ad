"""A bundle: the directory (or one packed file of it) that an export makes and a board runs."""

from __future__ import annotations

import json
import platform
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from edge_kit.bundle.cache import default_cache, lies_outside, unpack
from edge_kit.bundle.manifest import MANIFEST, Manifest, sha256_file
from edge_kit.bundle.split import EngineFile, Split
from edge_kit.bundle.tuning import TUNING, Tuning, read_tuning
from edge_kit.errors import BundleError
from edge_kit.exits import CurvePoint, ExitRule

__all__ = ["Bundle", "machine_arch", "pack"]

_ARCH = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64",
         "armv7l": "armv7l", "armv8l": "armv7l"}  # fmt: skip


def machine_arch() -> str:
    """Return this machine's architecture under the name that manifests use."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64") and struct.calcsize("P") == 4:
        # Raspberry Pi OS 32-bit boots a 64-bit kernel, which is what `uname` tells of.
        return "armv7l"
    return _ARCH.get(machine, machine)


@dataclass(frozen=True)
class Bundle:
    """An opened and verified bundle, and which of its splits is used.

    Attributes:
        root: The directory.
        manifest: What it says of itself.
        tuning: What this device does differently.
        index: Of the split; messages carry it.
    """

    root: Path
    manifest: Manifest
    tuning: Tuning = field(default_factory=Tuning)
    index: int = 0

    @classmethod
    def open(
        cls, path: str | Path, *, split: str | None = None, cache: Path | None = None
    ) -> Bundle:
        """Open a directory, or a packed file, and check every hash.

        Args:
            path: The bundle.
            split: Name of the split to use; by default the one that ``tuning.json`` names, else
                the first.
            cache: Where packed files are unpacked; by default the user's cache directory.

        Raises:
            BundleError: Missing, truncated, tampered with, of a newer schema, or without that
                split.
        """
        path = Path(path)
        if not _exists(path):
            raise BundleError(f"there is no bundle at {path}", "check the path")
        if path.is_dir():
            return _verified(path).using(split)
        cache = cache or default_cache()
        try:
            opened = _verified(unpack(path, cache))
        except BundleError:
            # Perhaps only the unpacked copy was damaged: unpack once more before giving up.
            opened = _verified(unpack(path, cache, anew=True))
        return opened.using(split)

    def using(self, split: str | None) -> Bundle:
        """Return this bundle with another split in use.

        Args:
            split: Its name; None for the one that the tuning names, else the first.

        Raises:
            BundleError: The bundle has no split of that name; the message lists its splits.
        """
        names = [s.name for s in self.manifest.splits]
        if self.tuning.split is not None and self.tuning.split not in names:
            raise BundleError(
                f"{self.root / TUNING} names the split {self.tuning.split!r}, "
                f"the bundle has: {', '.join(names)}",
                "correct it or remove it",
            )
        name = split or self.tuning.split or names[0]
        if name not in names:
            raise BundleError(f"{self.root} has no split {name!r}", f"it has: {', '.join(names)}")
        return replace(self, index=names.index(name))

    @property
    def split(self) -> Split:
        """The split in use."""
        return self.manifest.splits[self.index]

    @property
    def is_tuned(self) -> bool:
        """Whether ``tuning.json`` is about the split in use."""
        return self.split.name == (self.tuning.split or self.manifest.splits[0].name)

    @property
    def rule(self) -> ExitRule:
        """The exit rule of the split in use, tuned where the tuning is about that split."""
        return self.tuning.rule(self.split) if self.is_tuned else self.split.exit

    @property
    def curve(self) -> Sequence[CurvePoint]:
        """The threshold sweep that belongs to `rule`, T ascending."""
        return (self.is_tuned and self.tuning.curve) or self.split.curve

    def path(self, file: EngineFile) -> Path:
        """Return where an engine file lies."""
        return self.root / file.path

    def model_file(self, path: str) -> EngineFile:
        """Return a model file of the split in use, or of the whole model, by its path.

        Raises:
            BundleError: There is none.
        """
        for file in (*self.split.engines, *self.manifest.full):
            if file.path == path:
                return file
        raise BundleError(f"{self.root} has no model file {path}")

    def end_files(self, arch: str | None = None) -> tuple[EngineFile, ...]:
        """Return the split's end models that suit `arch` (default: this machine).

        Raises:
            BundleError: None does; the message says which architectures the split has.
        """
        arch = arch or machine_arch()
        fit = tuple(f for f in self.split.end if f.arch in ("any", arch))
        if not fit:
            have = ", ".join(sorted({f"{f.engine} for {f.arch}" for f in self.split.end})) or "none"
            raise BundleError(
                f"no end model in {self.root} runs on {arch} (it has: {have})",
                "export again with this architecture among the targets",
            )
        return fit

    def tail_file(self) -> EngineFile:
        """Return the cloud half of the split.

        Raises:
            BundleError: The bundle holds none.
        """
        if self.split.tail is None:
            raise BundleError(
                f"{self.root} has no cloud half for the split {self.split.name}", "export it again"
            )
        return self.split.tail


def pack(path: Path, out: Path) -> None:
    """Write a bundle as one file; the same zlib makes the same bytes.

    Raises:
        BundleError: The bundle is not valid, or `out` cannot be written.
    """
    bundle = Bundle.open(path)
    root, names = bundle.root, {MANIFEST, *bundle.manifest.stored}
    if (root / TUNING).exists():
        names.add(TUNING)
    part = out.with_name(out.name + ".part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name in sorted(names):
                entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, (root / name).read_bytes())
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BundleError(f"cannot write {out}: {error.strerror or error}") from None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror or error}") from None


def _verified(root: Path) -> Bundle:
    manifest = _read_manifest(root)
    for name, file in manifest.stored.items():
        _check_file(root, name, file.sha256)
    return Bundle(root, manifest, read_tuning(root))


def _read_manifest(root: Path) -> Manifest:
    file = root / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{root} is not a valid bundle: {MANIFEST} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{file} cannot be read: {error}", "copy the bundle again") from None
    if not isinstance(data, dict):
        raise BundleError(f"{file} does not hold a JSON object", "copy the bundle again")
    return Manifest.from_json(data)


def _check_file(root: Path, name: str, digest: str) -> None:
    if lies_outside(name):
        raise BundleError(f"the manifest names {name!r}, which lies outside the bundle")
    file = root / name
    try:
        if not file.is_file():
            raise BundleError(f"{name} is missing from {root}", "copy the bundle again")
        found = sha256_file(file)
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror or error}") from None
    if found != digest:
        raise BundleError(
            f"{name} in {root} is truncated or was changed (its SHA-256 differs)",
            "copy the bundle again",
        )
