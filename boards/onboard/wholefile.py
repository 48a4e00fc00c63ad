"""Write a file whole or not at all, safe against power cuts. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["NEW", "remove_whole", "sync_folder", "write_whole"]

# What a write that was cut off leaves behind ends so; the next write of that file removes it.
NEW = ".new"


def write_whole(
    path: Path, text: str, mode: int, own: Callable[[Path], object] | None = None
) -> None:
    """Replace a file; its directories are made when missing.

    Nobody else can read the text before the mode is set, and after a power cut there is the old
    file or the new one.

    Args:
        path: Which.
        text: What it will hold, as UTF-8.
        mode: Its permissions.
        own: Called with the new file before it takes the name; gives it an owner.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}{NEW}")
    fresh.unlink(missing_ok=True)
    # O_EXCL, so that no link that somebody left there is followed.
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())
    if own is not None:
        own(fresh)
    fresh.replace(path)
    # FAT writes where a new name leads to with the file, not with the folder.
    _sync(path, os.O_RDONLY)
    sync_folder(path.parent)


def remove_whole(path: Path) -> None:
    """Remove a file, if there is one, so that a power cut does not bring it back."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Let the change of a name survive a power cut."""
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
