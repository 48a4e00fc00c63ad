"""Feature messages for tests of the cloud half, and a worker that runs on a thread of the test."""

from __future__ import annotations

import queue
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from cloud_kit.worker.models import Models, Tail
from cloud_kit.worker.worker import Worker, WorkerSettings
from edge_kit.engines import FakeEngine
from edge_kit.link import Delivery, MemoryBroker, MemoryLink, Subscription
from edge_kit.wire import FeatureHeader, FeatureMessage, ResultMessage, Topics, shared_filter
from tests.support.tiny import CLASSES, FEATURES, LOGITS

MODEL = b"tinytail"
TIMEOUT = 60.0


def sample_id(index: int) -> bytes:
    return struct.pack("<Q", index)


def colour(label: int, spec=FEATURES) -> np.ndarray:
    """Features in which one channel is bright."""
    features = np.full(spec.shape, -64, dtype=spec.dtype)
    features[label] = 60
    return features


def message(index=0, *, model=MODEL, cut=0, spec=FEATURES, features=None, label=0) -> bytes:
    header = FeatureHeader(model, cut, spec, sample_id(index), 1_700_000_000_000_000, label, 0.9)
    values = colour(index % 3, spec) if features is None else features
    return FeatureMessage(header, values).encode()


def delivery(payload: bytes, index=0, *, device="cam-1", **changes) -> Delivery:
    topics = Topics(device)
    made = Delivery(
        topics.features, payload, 1, False, sample_id(index), topics.results, index + 1, 1
    )
    return replace(made, **changes)


def reseal(payload: bytes) -> bytes:
    """Give changed bytes a correct CRC-32."""
    return payload[:-4] + struct.pack("<I", zlib.crc32(payload[:-4]))


def scores(tensors) -> dict:
    """Score each channel's mean."""
    return {"logits": tensors["features"].mean(axis=(2, 3)).astype(np.float32) * 0.2}


def fake_tail(call=scores, *, model=MODEL, cut=0, features=FEATURES) -> Tail:
    engine = FakeEngine({"features": features}, {"logits": LOGITS}, call)
    return Tail(model, cut, "tiny", features, len(CLASSES), engine)


def models(*tails: Tail) -> Models:
    return Models({(t.model, t.cut): t for t in tails or (fake_tail(),)})


class Events(queue.SimpleQueue):
    """A queue whose ``put`` a test may replace."""


class Bench:
    """A device's link, a worker on its own thread, and an in-memory broker between them."""

    def __init__(self, worker_models: Models, settings: WorkerSettings, device="cam-1") -> None:
        self.broker = MemoryBroker()
        self.topics = Topics(device)
        self.device = MemoryLink(self.broker, [Subscription(self.topics.results)])
        self.link = MemoryLink(self.broker, [Subscription(shared_filter("p"))])
        self.link.events = Events()
        self.worker = Worker(self.link, worker_models, settings)
        self.clean: bool | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.clean = self.worker.run()
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        self.device.start()
        self.device.events.get(timeout=TIMEOUT)
        self.link.start()  # so that nothing is sent before it listens; the worker's start is idle
        self._thread.start()

    def stop(self) -> None:
        self.worker.stop()
        self.join()

    def join(self) -> None:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()

    def send(self, payload: bytes, index=0, **changes) -> None:
        asked = {"correlation": sample_id(index), "response_topic": self.topics.results}
        topic = changes.pop("topic", self.topics.features)
        self.device.publish(topic, payload, **(asked | changes))

    def result(self) -> ResultMessage:
        """Wait for the next result at the device."""
        while True:
            event = self.device.events.get(timeout=TIMEOUT)
            if isinstance(event, Delivery):
                self.device.ack(event)
                return ResultMessage.decode(event.payload)


@contextmanager
def bench(worker_models: Models | None = None, **settings) -> Iterator[Bench]:
    chosen = WorkerSettings(**({"wait_s": 0.0, "tick_s": 0.05} | settings))
    made = Bench(worker_models or models(), chosen)
    made.start()
    try:
        yield made
    finally:
        made.stop()
