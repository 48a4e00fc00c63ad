"""Remember recent answers, so that a resend costs no second inference."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Recent"]

_V = TypeVar("_V")


class Recent(Generic[_V]):
    """A map that forgets what was used least recently; threads may share it.

    Args:
        size: Entries kept; 0 remembers nothing.
    """

    def __init__(self, size: int) -> None:
        if size < 0:
            raise ValueError(f"size {size} is negative")
        self._size = size
        self._entries: OrderedDict[Hashable, _V] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> _V | None:
        """Return what was stored, and count that as a use."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: Hashable, value: _V) -> None:
        """Store, forgetting the oldest entry when full."""
        with self._lock:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
