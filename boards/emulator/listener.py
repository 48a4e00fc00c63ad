"""Listen to a device in an emulator: the broker of its settings, and what it publishes there."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from boards.onboard.settings import Settings
from edge_kit.errors import DecodeError, ImageError, LinkError, MissingExtraError
from edge_kit.host.broker import HOST, broker_process
from edge_kit.wire import Refusal, ResultMessage

__all__ = ["HOST_IN_GUEST", "DeviceListener", "broker", "broker_port"]

# QEMU's user network shows the machine's loopback to the guest under this address.
HOST_IN_GUEST = "10.0.2.2"
_TOPICS = "edgekit/1"


def broker_port(settings: Settings) -> int:
    """Return the port on this machine at which the image's device will look for its broker.

    Raises:
        ImageError: Its settings name no broker that an emulator reaches.
    """
    url = str(settings.run.get("broker", ""))
    found = re.fullmatch(rf"mqtt://(?:[^@/]*@)?{re.escape(HOST_IN_GUEST)}(?::(\d+))?/?", url)
    if found is None:
        raise ImageError(
            f"the image's broker is {url or 'not set'}, which an emulated device does not reach",
            f'build one with broker = "mqtt://{HOST_IN_GUEST}:1883", which is this machine',
        )
    return int(found[1] or 1883)


@contextmanager
def broker(port: int) -> Iterator[bool]:
    """Use the broker on this port of loopback, or start one that ends with the context.

    Yields:
        Whether it was started here.

    Raises:
        LinkError: None is installed, or it does not come up.
    """
    with socket.socket() as probe:
        probe.settimeout(2)
        listens = probe.connect_ex((HOST, port)) == 0
    if listens:
        yield False
    else:
        with broker_process(port):
            yield True


class DeviceListener:
    """Listens for devices and for answers to them.

    Args:
        port: Of the broker on loopback.

    Attributes:
        changed: Set whenever something came.
        device: Id of the first device that said it is online; empty before.
        status: Its status message.
        online: Whether its last status, or last will, says so.
        answers: Samples of it that workers classified.
        refusals: Samples that they refused, such as for an unknown model.
        counters: Its latest counters.

    Raises:
        LinkError: The broker refuses the connection.
        MissingExtraError: paho is not installed.
    """

    def __init__(self, port: int) -> None:
        try:
            import paho.mqtt.client as mqtt
            from paho.mqtt.enums import CallbackAPIVersion
        except ModuleNotFoundError:
            raise MissingExtraError("paho-mqtt", "demo", "listening to the device") from None
        self.changed = threading.Event()
        self.device = ""
        self.online = False
        self.status: dict[str, Any] = {}
        self.counters: dict[str, Any] = {}
        self.answers = 0
        self.refusals = 0
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)
        self._client.on_connect = lambda client, *_rest: client.subscribe(f"{_TOPICS}/+/+")
        self._client.on_message = lambda _client, _data, message: self._receive(
            message.topic, bytes(message.payload), message.retain
        )
        try:
            self._client.connect(HOST, port)
        except OSError as error:
            raise LinkError(f"the broker on port {port} does not answer: {error}") from None
        self._client.loop_start()

    def close(self) -> None:
        """Stop listening."""
        self._client.disconnect()
        self._client.loop_stop()

    def _receive(self, topic: str, payload: bytes, retained: bool) -> None:
        if retained:
            return  # from before we listened
        device, kind = topic.split("/")[2:4]
        if kind == "status":
            status = _object(payload)
            self.online = status.get("state") == "online"
            if self.online:
                self.device, self.status = self.device or device, status
        elif kind == "state":
            self.counters = _object(payload).get("counters", {})
        elif kind == "results":
            self._count_result(payload)
        self.changed.set()

    def _count_result(self, payload: bytes) -> None:
        try:
            result = ResultMessage.decode(payload)
        except DecodeError:
            return
        if result.refusal is Refusal.NONE:
            self.answers += 1
        else:
            self.refusals += 1


def _object(payload: bytes) -> dict[str, Any]:
    try:
        data = json.loads(payload)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
