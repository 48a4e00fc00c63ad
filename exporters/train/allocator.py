"""Let glibc keep the memory that training frees, instead of returning it after each step."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_MAX = -4


def keep_freed_memory() -> None:
    """Stop malloc from unmapping large blocks; does nothing where there is no glibc.

    Each training step frees and asks again for the same hundreds of megabytes; page faults on
    them took half of the time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
