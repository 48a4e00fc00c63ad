"""A folder of photos, subfolders included."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from edge_kit.errors import SourceError
from edge_kit.sources.photo import PHOTO_SUFFIXES, is_photo, read_photo
from edge_kit.sources.source import Frame

__all__ = ["FolderSource"]

_LOG = logging.getLogger(__name__)


class FolderSource:
    """Yield every photo below a folder, sorted by path, so that two runs see the same order.

    A photo that cannot be read is counted, reported and skipped: one bad file must not end a
    night's work.
    """

    live = False
    dropped = 0

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.skipped = 0
        self._path = path
        self._closed = False

    def paths(self) -> list[Path]:
        """Return the photos, sorted.

        Raises:
            SourceError: The folder is missing, cannot be read or holds no photo.
        """
        try:
            os.scandir(self._path).close()  # what fails at the very start is an error
            walk = os.walk(self._path, onerror=self._skip_folder)
            places = [Path(folder, name) for folder, _folders, names in walk for name in names]
            found = [p for p in places if is_photo(p)]
        except OSError as error:
            raise SourceError(f"{self._path} cannot be read ({error.strerror})") from None
        if not found:
            kinds = ", ".join(sorted(PHOTO_SUFFIXES))
            raise SourceError(f"{self._path} holds no photo", f"photos end in {kinds}")
        return sorted(found)

    def frames(self) -> Iterator[Frame]:
        """Yield the photos; a frame's name is its path relative to the folder.

        Raises:
            SourceError: There is no photo, or not one of them can be read.
        """
        read = 0
        for path in self.paths():
            if self._closed:
                return
            try:
                pixels = read_photo(path)
            except SourceError as error:
                self._skip(error)
                continue
            yield Frame(pixels, time.time(), read, path.relative_to(self._path).as_posix())
            read += 1
        if not read:
            raise SourceError(f"none of the {self.skipped} photos in {self._path} can be read")

    def close(self) -> None:
        """End before the next photo."""
        self._closed = True

    def _skip_folder(self, error: OSError) -> None:
        self._skip(SourceError(f"{error.filename} cannot be read ({error.strerror})"))

    def _skip(self, error: SourceError) -> None:
        self.skipped += 1
        _LOG.warning("skipped: %s", error)
