"""A heartbeat in a file, and the check that containers and orchestrators run on it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud_kit.worker.worker import Vitals
from edge_kit.errors import ConfigError

__all__ = ["Heartbeat", "Verdict", "check"]


class Heartbeat:
    """Writes a worker's vitals once a period, and whenever it connects, disconnects or stops.

    Args:
        path: The file; its directory must exist. A read-only root needs a tmpfs there.
        period_s: Seconds between writes.
        clock: Unix time, because another process compares it.
    """

    def __init__(
        self, path: Path, period_s: float = 2.0, clock: Callable[[], float] = time.time
    ) -> None:
        self.path = path
        self.period_s = period_s
        self._clock = clock
        self._next = 0.0
        self._said = (False, False)

    def beat(self, vitals: Vitals) -> None:
        """Write, if it is time.

        Raises:
            ConfigError: The file cannot be written.
        """
        now = self._clock()
        # Also due when the clock was set back.
        spaced = not self._next - self.period_s <= now < self._next
        news = vitals.connected, vitals.draining
        if not spaced and news == self._said:
            return
        self._next, self._said = now + self.period_s, news
        state = {
            "at": now,
            "connected": vitals.connected,
            "engine_s": round(vitals.engine_s, 3),
            "draining": vitals.draining,
        }
        part = self.path.with_name(self.path.name + ".part")
        try:
            part.write_text(json.dumps(state), encoding="utf-8")
            part.replace(self.path)
        except OSError as error:
            raise ConfigError(
                f"the health file {self.path} cannot be written ({error.strerror})",
                "name a writable place with --health-file, such as a tmpfs",
            ) from None

    def remove(self) -> None:
        """Delete the file, so that a stopped worker does not look alive."""
        with suppress(OSError):
            self.path.unlink()


@dataclass(frozen=True)
class Verdict:
    """What a check found.

    Attributes:
        ok: Well.
        detail: One sentence.
    """

    ok: bool
    detail: str


def check(
    path: Path,
    *,
    max_age_s: float = 15.0,
    max_engine_s: float = 60.0,
    alive_only: bool = False,
    now: float | None = None,
) -> Verdict:
    """Judge a heartbeat.

    Args:
        path: The file.
        max_age_s: Older beats mean that the loop hangs; so do beats that far in the future, since
            a worker beats again at once when the clock was set back.
        max_engine_s: A batch longer than this means that the engine hangs.
        alive_only: Do not ask for a connection: restarting a worker heals no broker.
        now: Unix time; default the present.
    """
    now = time.time() if now is None else now
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        age = now - float(state["at"])
        connected = bool(state["connected"])
        engine_s = float(state["engine_s"])
    except FileNotFoundError:
        return Verdict(False, f"there is no heartbeat at {path}: the worker is not running")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Verdict(False, f"the heartbeat at {path} cannot be read ({error})")
    if age > max_age_s:
        return Verdict(False, f"the last heartbeat is {age:.0f} s old: the worker hangs")
    if age < -max_age_s:
        return Verdict(False, f"the last heartbeat is {-age:.0f} s ahead of the clock")
    if engine_s > max_engine_s:
        return Verdict(False, f"a batch has been in the engine for {engine_s:.0f} s")
    if not connected and not alive_only:
        return Verdict(False, "the worker has no connection to its broker")
    return Verdict(True, "connected" if connected else "alive, without a connection")
