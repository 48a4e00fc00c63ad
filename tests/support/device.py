"""What tests of the device as a process share; `conftest.py` makes fixtures of it."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from edge_kit.link import Connected, Delivery, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import FeatureMessage, Refusal, ResultMessage, shared_filter
from tests.support.mosquitto import Mosquitto

WAIT_S = 60.0
PHOTOS = 12  # every other one is grey, so not confident
DOUBTFUL = PHOTOS // 2

Edge = Callable[..., subprocess.Popen]


class Worker:
    """Answers every sample with class 2, or refuses it, as a thread of the test."""

    def __init__(self, broker: Mosquitto, refusal: Refusal = Refusal.NONE) -> None:
        self.refusal = refusal
        self.seen: list[bytes] = []
        self._link = MqttLink(broker.address, "worker", [Subscription(shared_filter("w"))])
        self._link.start()
        while not isinstance(self._link.events.get(timeout=WAIT_S), Connected):
            pass
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stopping.is_set():
            event = self._link.events.get()
            if isinstance(event, Delivery):
                header = FeatureMessage.decode(event.payload).header
                self.seen.append(header.sample)
                answer = ResultMessage(
                    header.model, header.sample, self.refusal, 2, confidence=0.9, entropy=0.1
                )
                assert event.response_topic is not None
                self._link.publish(event.response_topic, answer.encode(), correlation=header.sample)
                self._link.ack(event)

    def stop(self) -> None:
        self._stopping.set()
        self._link.stop()
        self._thread.join(WAIT_S)


def write_photos(folder: Path) -> Path:
    """Write the photos: grey ones, and between them red, green and blue."""
    for index in range(PHOTOS):
        pixels = np.full((16, 16, 3), 120, np.uint8)
        if index % 2:
            pixels[:] = 0
            pixels[..., index % 3] = 255
        Image.fromarray(pixels).save(folder / f"{index:02}.png")
    return folder


def finish(child: subprocess.Popen) -> tuple[int, list[dict], str]:
    """Return exit code, JSON lines and standard error."""
    out, err = child.communicate(timeout=WAIT_S)
    return child.returncode, [json.loads(line) for line in out.splitlines()], err


def kinds(lines: list[dict]) -> dict[int, list[str]]:
    """Return tier and status of each result, by frame."""
    found: dict[int, list[str]] = {}
    for line in lines:
        if "summary" not in line:
            found.setdefault(line["index"], []).append(f"{line['tier']} {line['status']}")
    return found
