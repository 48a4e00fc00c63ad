"""A card in memory, which can be pulled out or lie about its size."""

from __future__ import annotations

import errno
import os


class MemoryCard:
    """A `boards.flash.card.Card` in memory.

    Args:
        size: Bytes.
        pulled_after: Let every call fail with EIO once so many bytes were written.
        true_size: Bytes that it really keeps; later offsets wrap, as on counterfeit cards.
    """

    def __init__(
        self, size: int, *, pulled_after: int | None = None, true_size: int | None = None
    ) -> None:
        self.data = bytearray(true_size or size)
        self.written = 0
        self.writes: list[tuple[int, int]] = []
        self._size = size
        self._pulled_after = pulled_after

    @property
    def size(self) -> int:
        """Return what it claims."""
        return self._size

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`."""
        self._check()
        if offset + len(data) > self._size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        at = offset % len(self.data)
        kept = data[: len(self.data) - at]
        self.data[at : at + len(kept)] = kept
        self.data[: len(data) - len(kept)] = data[len(kept) :]
        self.written += len(data)
        self.writes.append((offset, len(data)))

    def sync(self) -> None:
        """Fail when pulled, else nothing."""
        self._check()

    def drop_caches(self) -> None:
        """Do nothing: there are none."""

    def read(self, offset: int, length: int) -> bytes:
        """Read."""
        self._check()
        at = offset % len(self.data)
        return bytes(self.data[at : at + min(length, self._size - offset)])

    def _check(self) -> None:
        if self._pulled_after is not None and self.written >= self._pulled_after:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
