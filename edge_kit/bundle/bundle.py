"""A bundle: the directory (or one packed file of it) that an export makes and a board runs."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import struct
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from edge_kit.bundle.manifest import Cut, EngineFile, Manifest
from edge_kit.errors import BundleError

__all__ = ["MANIFEST", "Bundle", "machine_arch", "pack", "sha256_file"]

MANIFEST = "manifest.json"
# Weights shrink by a tenth; the manifest and the report by more.
_MOST_GROWTH = 20

_ARCH = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64",
         "armv7l": "armv7l", "armv8l": "armv7l"}  # fmt: skip


def machine_arch() -> str:
    """Return this machine's architecture under the name that manifests use."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64") and struct.calcsize("P") == 4:
        # Raspberry Pi OS 32-bit boots a 64-bit kernel, which is what `uname` tells of.
        return "armv7l"
    return _ARCH.get(machine, machine)


def sha256_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file.

    Raises:
        OSError: It cannot be read.
    """
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
        if not _exists(path):
            raise BundleError(f"there is no bundle at {path}", "check the path")
        if path.is_dir():
            return cls(path, _verified(path))
        root = _unpack(path, cache or _cache_dir())
        try:
            return cls(root, _verified(root))
        except BundleError:
            # Perhaps only the unpacked copy was damaged: unpack once more before giving up.
            shutil.rmtree(root, ignore_errors=True)
        root = _unpack(path, cache or _cache_dir())
        return cls(root, _verified(root))

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
        """Return a cut by index.

        Raises:
            BundleError: The manifest lists no such cut.
        """
        cuts = self.manifest.cuts
        if not 0 <= index < len(cuts):
            raise BundleError(f"{self.root} has no cut {index} (it has {len(cuts)})")
        return cuts[index]


def pack(root: Path, out: Path) -> None:
    """Write the bundle in `root` as one file; the same zlib makes the same bytes.

    Raises:
        BundleError: The bundle is not sound, or `out` cannot be written.
    """
    bundle = Bundle.open(root)
    names = {MANIFEST, *(f.path for f in bundle.manifest.engines), *bundle.manifest.files}
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


def _verified(root: Path) -> Manifest:
    manifest = _read_manifest(root)
    listed = {f.path: f.sha256 for f in manifest.engines} | dict(manifest.files)
    for name, digest in listed.items():
        _check_file(root, name, digest)
    return manifest


def _read_manifest(root: Path) -> Manifest:
    file = root / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{root} is no bundle: it has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{file} cannot be read: {error}", "copy the bundle again") from None
    if not isinstance(data, dict):
        raise BundleError(f"{file} holds no JSON object", "copy the bundle again")
    return Manifest.from_json(data)


def _outside(name: str) -> bool:
    pure = PurePosixPath(name)
    return pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name


def _check_file(root: Path, name: str, digest: str) -> None:
    if _outside(name):
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


def _cache_dir() -> Path:
    try:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        raise BundleError(
            "this user has no home in which a packed bundle could be unpacked",
            "set XDG_CACHE_HOME, or unpack it yourself (it is a zip file) and name its directory",
        ) from None
    return Path(base) / "edge-kit" / "bundles"


def _unpack(file: Path, cache: Path) -> Path:
    """Unpack `file` into its place in `cache`, at once or not at all; return that place."""
    work: Path | None = None
    try:
        target = cache / sha256_file(file)[:32]
        if (target / MANIFEST).exists():
            return target
        cache.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=cache, prefix="unpack-"))
        _extract(file, work)
        _move(work, target)
    except OSError as error:
        raise BundleError(
            f"cannot unpack {file} into {cache}: {error.strerror or error}",
            "check the free space and who may write there, or unpack it yourself (a zip file)",
        ) from None
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
    return target


def _extract(file: Path, work: Path) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            for entry in entries:
                if _outside(entry.filename):
                    raise BundleError(f"{file} holds {entry.filename!r}, which lies outside it")
            # Reading stops at the size that an entry announces, so this bounds what is written.
            if sum(e.file_size for e in entries) > _MOST_GROWTH * file.stat().st_size:
                raise BundleError(
                    f"{file} would grow more than {_MOST_GROWTH} times, which no bundle does",
                    "pack it with: edge-kit bundle pack",
                )
            archive.extractall(work)
    except (
        zipfile.BadZipFile, zlib.error, struct.error,
        EOFError, NotImplementedError, RuntimeError, ValueError, LookupError,
    ) as error:  # fmt: skip
        raise BundleError(f"{file} is no whole bundle file: {error}", "copy it again") from None


def _move(work: Path, target: Path) -> None:
    try:
        work.replace(target)
    except OSError:
        if (target / MANIFEST).exists():
            return  # another process unpacked the same file meanwhile
        shutil.rmtree(target, ignore_errors=True)  # the rest of a copy that somebody thinned out
        work.replace(target)
