"""Packed bundles, unpacked once per content into the user's cache.

Of the unpacked copies, those in use and the one used before them are kept; the others are removed
when a new one is made. A process holds a shared lock on the folder that it uses until it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from edge_kit.bundle.manifest import MANIFEST, sha256_file
from edge_kit.errors import BundleError
from edge_kit.folders import cache_folder

__all__ = ["default_cache", "lies_outside", "unpack"]

# Weights shrink by a tenth; the manifest and the report by more.
_MAX_GROWTH = 20
_UNFINISHED = "unpack-"
_in_use: dict[Path, int] = {}
"""Locked folders of this process, and the descriptors that hold the locks."""


def default_cache() -> Path:
    """Return where packed bundles are unpacked.

    Raises:
        BundleError: This user has no home.
    """
    folder = cache_folder()
    if folder is None:
        raise BundleError(
            "this user has no home in which a packed bundle could be unpacked",
            "set XDG_CACHE_HOME, or unpack it yourself (it is a zip file) and name its directory",
        )
    return folder / "bundles"


def unpack(file: Path, cache: Path, *, anew: bool = False) -> Path:
    """Return the folder of an unpacked bundle, kept until this process ends.

    Args:
        file: The packed bundle.
        cache: Folder of all unpacked ones.
        anew: Replace a copy that was damaged.

    Raises:
        BundleError: It is damaged, or cannot be unpacked there.
    """
    try:
        target = cache / sha256_file(file)[:32]
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache):
            if anew or not (target / MANIFEST).exists():
                _replace(file, cache, target)
            _use(target)
            _remove_unused(cache)
    except OSError as error:
        raise BundleError(
            f"cannot unpack {file} into {cache}: {error.strerror or error}",
            "check the free space and who may write there, or unpack it yourself (a zip file)",
        ) from None
    return target


def lies_outside(name: str) -> bool:
    """Return whether a file of that name would lie outside its bundle."""
    pure = PurePosixPath(name)
    return pure.is_absolute() or ".." in pure.parts or "\\" in name or "\0" in name


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(file: Path, cache: Path, target: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=cache, prefix=_UNFINISHED))
    try:
        _extract(file, work)
        shutil.rmtree(target, ignore_errors=True)
        work.replace(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _use(target: Path) -> None:
    """Lock a folder for reading until this process ends, and note the time."""
    descriptor = os.open(target, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    if (before := _in_use.pop(target, None)) is not None:
        os.close(before)
    _in_use[target] = descriptor
    with contextlib.suppress(OSError):  # a cache that is only readable
        os.utime(target)


def _remove_unused(cache: Path) -> None:
    """Remove what a killed process left, and all but the newest of the folders nobody uses."""
    unused = []
    for folder in sorted(cache.iterdir(), key=lambda f: f.stat().st_mtime_ns, reverse=True):
        if folder.name.startswith(_UNFINISHED):
            shutil.rmtree(folder, ignore_errors=True)
        elif folder.is_dir() and not _is_used(folder):
            unused.append(folder)
    for folder in unused[1:]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_used(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _extract(file: Path, work: Path) -> None:
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            for entry in entries:
                if lies_outside(entry.filename):
                    raise BundleError(f"{file} holds {entry.filename!r}, which lies outside it")
            # Reading stops at the size that an entry announces, so this bounds what is written.
            if sum(e.file_size for e in entries) > _MAX_GROWTH * file.stat().st_size:
                raise BundleError(
                    f"{file} would grow more than {_MAX_GROWTH} times, which no bundle does",
                    "pack it with: edge-kit bundle pack",
                )
            archive.extractall(work)
    except (
        zipfile.BadZipFile, zlib.error, struct.error,
        EOFError, NotImplementedError, RuntimeError, ValueError, LookupError,
    ) as error:  # fmt: skip
        raise BundleError(f"{file} is not a valid bundle file: {error}", "copy it again") from None
