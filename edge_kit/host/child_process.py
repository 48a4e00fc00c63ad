"""Child processes that end with their parent, even when that is killed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

__all__ = ["end_with_parent"]

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> Callable[[], None] | None:
    """Return the ``preexec_fn`` of a child that gets SIGTERM when its parent dies; Linux only.

    The parent is the thread that starts the child (prctl(2)), so start it on one that lives on.
    """
    if sys.platform != "linux":
        return None
    # Loaded here: between fork and exec as little as possible may run.
    libc, parent = ctypes.CDLL(None), os.getpid()

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it died before the call above

    return bind
