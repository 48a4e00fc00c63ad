"""Report the state of the service to systemd, by the datagrams of sd_notify(3).

Outside systemd, or in a unit that does not ask for it, every call does nothing.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping

__all__ = ["Notifier"]

_log = logging.getLogger(__name__)

# A watchdog is fed at most this often; systemd's limits are tens of seconds.
FEED_EVERY_S = 1.0


class Notifier:
    """Report readiness and the flow of frames.

    Only `frame` feeds the watchdog, so a camera or an engine that hangs and a disk that blocks the
    loop all end in a restart. A timer beside the loop would not notice them.

    Args:
        env: The environment; ``NOTIFY_SOCKET`` names systemd's socket.
        clock: Monotonic, seconds.
    """

    def __init__(self, env: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        name = env.get("NOTIFY_SOCKET", "")
        # A leading @ stands for the NUL of an abstract socket (unix(7)).
        self._path = "\0" + name[1:] if name.startswith("@") else name
        self._clock = clock
        self._ready = False
        self._fed_at = 0.0

    def frame(self) -> None:
        """Report that a frame went through the loop; the first one makes the service ready."""
        if not self._path:
            return
        now = self._clock()
        if not self._ready:
            self._ready = True
            self._fed_at = now
            self._send("READY=1\nWATCHDOG=1\nSTATUS=Frames flow")
        elif now - self._fed_at >= FEED_EVERY_S:
            self._fed_at = now
            self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Report that no more frames come, which stops the watchdog while results arrive."""
        self._send("STOPPING=1\nSTATUS=Waiting for results")

    def _send(self, text: str) -> None:
        if not self._path:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(1.0)
                out.sendto(text.encode(), self._path)
        except OSError as error:
            # If that lasts, systemd restarts the service, as it should.
            _log.warning("systemd cannot be told %r: %s", text.split("\n")[0], error)
