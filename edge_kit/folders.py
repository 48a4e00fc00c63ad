"""Where edge-kit keeps files of this user: caches, and what must survive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import platformdirs

__all__ = ["cache_folder", "state_folder"]

_NAME = "edge-kit"
_WITHOUT_HOME = Path("/var/lib/edge-kit")


def cache_folder() -> Path | None:
    """Return the folder of caches, which may not exist yet; None for a user without a home."""
    return _absolute(platformdirs.user_cache_path)


def state_folder(env: Mapping[str, str]) -> Path:
    """Return the folder of what must survive: systemd's for a service, else the user's.

    A user without a home gets one below ``/var/lib``; whether it can be written, its first use
    shows.

    Args:
        env: The environment, of which ``STATE_DIRECTORY`` counts.
    """
    if env.get("STATE_DIRECTORY"):
        return Path(env["STATE_DIRECTORY"].split(":")[0])
    return _absolute(platformdirs.user_state_path) or _WITHOUT_HOME


def _absolute(find: Callable[[str], Path]) -> Path | None:
    try:
        folder = find(_NAME)
    except RuntimeError:  # no home; older versions of platformdirs return a path from ``~`` instead
        return None
    return folder if folder.is_absolute() else None
