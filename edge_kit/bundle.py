"""A bundle: the directory (or one packed file of it) that an export makes and a board runs."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edge_kit.errors import BundleError
from edge_kit.manifest import Cut, EngineFile, Manifest

__all__ = ["MANIFEST", "Bundle", "machine_arch", "pack", "sha256_file"]

MANIFEST = "manifest.json"
PACKED_SUFFIX = ".ekb"

_ARCH = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64",
         "armv7l": "armv7l", "armv8l": "armv7l"}  # fmt: skip


def machine_arch() -> str:
    """Return this machine's architecture under the name that manifests use."""
    machine = platform.machine().lower()
    return _ARCH.get(machine, machine)


def sha256_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class Bundle:
    """An opened and verified bundle.

    Attributes:
        root: The directory.
        manifest: What it says of itself.
    """

    root: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, *, cache: Path | None = None) -> Bundle:
        """Open a directory, or a packed file, and check every hash.

        Args:
            path: The bundle.
            cache: Where packed files are unpacked; by default the user's cache directory.

        Raises:
            BundleError: Missing, truncated, tampered with, or of a newer schema.
        """
        path = Path(path)
        if not path.exists():
            raise BundleError(f"there is no bundle at {path}", "check the path")
        root = path if path.is_dir() else _unpack(path, cache or _cache_dir())
        manifest = _read_manifest(root)
        listed = {f.path: f.sha256 for f in manifest.engines} | dict(manifest.files)
        for name, digest in listed.items():
            _check_file(root, name, digest)
        return cls(root, manifest)

    def path(self, file: EngineFile) -> Path:
        """Return where an engine file lies."""
        return self.root / file.path

    def end_files(self, arch: str | None = None) -> tuple[EngineFile, ...]:
        """Return the end models that suit `arch` (default: this machine).

        Raises:
            BundleError: None does; the message says which architectures the bundle has.
        """
        arch = arch or machine_arch()
        ends = [f for f in self.manifest.engines if f.role == "end"]
        fit = tuple(f for f in ends if f.arch in ("any", arch))
        if not fit:
            have = ", ".join(sorted({f"{f.engine} for {f.arch}" for f in ends})) or "none"
            raise BundleError(
                f"no end model in {self.root} runs on {arch} (it has: {have})",
                "export again with this architecture among the targets",
            )
        return fit

    def tail_file(self, cut: int = 0) -> EngineFile:
        """Return the cloud half of a cut.

        Raises:
            BundleError: The bundle holds none.
        """
        for file in self.manifest.engines:
            if file.role == "tail" and file.cut == cut:
                return file
        raise BundleError(f"{self.root} has no cloud half for cut {cut}", "export it again")

    def cut(self, index: int = 0) -> Cut:
        """Return a cut by index."""
        return self.manifest.cuts[index]


def pack(root: Path, out: Path) -> None:
    """Write the bundle in `root` as one file, the same bytes for the same content.

    Raises:
        BundleError: The bundle is not sound, or `out` cannot be written.
    """
    bundle = Bundle.open(root)
    names = [MANIFEST, *(f.path for f in bundle.manifest.engines), *bundle.manifest.files]
    part = out.with_name(out.name + ".part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            for name in sorted(names):
                entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, (root / name).read_bytes())
        part.replace(out)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BundleError(f"cannot write {out}: {error.strerror}") from None


def _read_manifest(root: Path) -> Manifest:
    file = root / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{root} is no bundle: it has no {MANIFEST}") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BundleError(f"{file} cannot be read: {error}", "copy the bundle again") from None
    if not isinstance(data, dict):
        raise BundleError(f"{file} holds no JSON object", "copy the bundle again")
    return Manifest.from_json(data)


def _check_file(root: Path, name: str, digest: str) -> None:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name:
        raise BundleError(f"the manifest names {name!r}, which lies outside the bundle")
    file = root / name
    if not file.is_file():
        raise BundleError(f"{name} is missing from {root}", "copy the bundle again")
    if sha256_file(file) != digest:
        raise BundleError(
            f"{name} in {root} is truncated or was changed (its SHA-256 differs)",
            "copy the bundle again",
        )


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "edge-kit" / "bundles"


def _unpack(file: Path, cache: Path) -> Path:
    try:
        target = cache / sha256_file(file)[:32]
        if (target / MANIFEST).exists():
            return target
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=cache, prefix="unpack-"))
    except OSError as error:
        raise BundleError(f"cannot unpack {file}: {error}") from None
    try:
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                pure = PurePosixPath(name)
                if pure.is_absolute() or ".." in pure.parts or "\\" in name:
                    raise BundleError(f"{file} holds {name!r}, which lies outside the bundle")
            archive.extractall(work)
        if not target.exists():
            work.replace(target)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError) as error:
        raise BundleError(f"{file} is no whole bundle file: {error}", "copy it again") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target
