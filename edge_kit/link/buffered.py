"""A paho client that reads ahead.

paho reads each packet with three calls or more: a byte, the bytes of its length, the rest. Each
call gives up the interpreter's lock and waits for it again; in a busy worker, that was an eighth
of the cost of a sample.
"""

from __future__ import annotations

import paho.mqtt.client as paho

__all__ = ["BufferedClient"]

READ_AHEAD = 1 << 16


class BufferedClient(paho.Client):
    """Takes what is there from the socket in one call; `drain` handles what was read ahead.

    A release of paho that calls its own method otherwise would read as it always did.
    """

    _ahead = b""
    _at = 0

    def drain(self) -> None:
        """Handle the packets that were read ahead; call it after each `loop`."""
        while self._at < len(self._ahead):
            # It returns at the end of what was read, in the middle of a packet or not.
            if self.loop_read() != paho.MQTT_ERR_SUCCESS:
                return

    def _sock_recv(self, bufsize: int) -> bytes:
        if self._at == len(self._ahead):
            self._ahead, self._at = b"", 0
            if bufsize >= READ_AHEAD:
                return bytes(super()._sock_recv(bufsize))
            self._ahead = super()._sock_recv(READ_AHEAD)
        start, self._at = self._at, min(self._at + bufsize, len(self._ahead))
        return self._ahead[start : self._at]
