"""A time server: the answer of SNTP (RFC 4330) that systemd-timesyncd takes."""

from __future__ import annotations

import socket
import struct
import threading
import time

__all__ = ["TimeServer"]

PORT = 123
# From 1900, where NTP counts, to 1970.
_ERA = 2_208_988_800
# No warning, version 4, a server.
_MODE = 0x24
_LOOK_EVERY_S = 0.2


class TimeServer:
    """Tells this machine's time on loopback, from when it is started.

    Attributes:
        asked: How many questions it has answered.

    Raises:
        PermissionError: Only root may listen on port 123.
    """

    def __init__(self) -> None:
        self.asked = 0
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.bind(("127.0.0.1", PORT))
        except OSError:
            self._socket.close()
            raise
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def start(self) -> None:
        """Answer from now on; what was asked before is thrown away."""
        self._socket.setblocking(False)
        try:
            while True:
                self._socket.recv(512)
        except BlockingIOError:
            pass
        self._socket.settimeout(_LOOK_EVERY_S)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self._ends.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while not self._ends.is_set():
            try:
                question, sender = self._socket.recvfrom(512)
            except TimeoutError:
                continue
            if len(question) < 48:
                continue
            self.asked += 1
            now = time.time() + _ERA
            stamp = struct.pack("!II", int(now), int(now % 1 * (1 << 32)))
            # Stratum 1, polling as asked, a microsecond, no delay to the root, local clock.
            head = struct.pack("!BBBbII4s", _MODE, 1, question[2], -20, 0, 1 << 6, b"LOCL")
            self._socket.sendto(head + stamp + question[40:48] + stamp + stamp, sender)
