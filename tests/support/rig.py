"""An outbox with everything around it in memory, but for its spool; for tests of delivery."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_kit.delivery.outbox import Outbox, Sample
from edge_kit.delivery.results import Result
from edge_kit.delivery.spool import Spool
from edge_kit.delivery.window import Pace
from edge_kit.link import Delivery, MemoryBroker, MemoryLink, Subscription
from edge_kit.tensors import TensorSpec
from edge_kit.wire import FeatureHeader, FeatureMessage, ResultMessage, Topics

TOPICS = Topics("cam")
CLASSES = ("red", "green", "blue")
MODEL = b"\x01" * 8
SPEC = TensorSpec("features", (3, 2, 2), "NCHW", "int8", 0.5, -3)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def low_confidence(index: int = 0) -> Sample:
    header = FeatureHeader(MODEL, 0, SPEC, bytes(8), 5, 0, 0.9)
    result = Result(None, f"{index}.jpg", index, 1_000_000.0, 0, "red", 0.4, 0.9)
    return Sample(header, np.full(SPEC.shape, index, np.int8), result, ticks=999.0)


def spoil(path: Path) -> None:
    """Overwrite all pages but the first, so that an open connection notices."""
    with sqlite3.connect(path) as other:
        other.execute("INSERT INTO counter VALUES ('other', 1)")
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.close()
    with path.open("r+b") as file:
        file.seek(1024)
        file.write(b"\xff" * (path.stat().st_size - 1024))


class Rig:
    """An outbox with everything around it; `settle_link` hands events over as a courier would."""

    def __init__(self, path: Path, **spool) -> None:
        self.path = path
        self.spool_options = spool
        self.clock = Clock()
        self.wall = Clock()
        self.wall.now = 1_800_000_000.0
        self.broker = MemoryBroker()
        self.worker = MemoryLink(self.broker, [Subscription(f"$share/w/{TOPICS.features}")])
        self.worker.start()
        self.worker.events.get()
        self.out: list[Result] = []
        self.open()

    def open(self) -> None:
        self.spool = Spool(self.path, clock=self.wall, monotonic=self.clock, **self.spool_options)
        self.link = MemoryLink(self.broker, [Subscription(TOPICS.results)])
        self.box = Outbox(
            self.spool,
            self.link,
            TOPICS,
            classes=CLASSES,
            model=MODEL,
            emit=self.out.append,
            pace=Pace(window=4),
            clock=self.clock,
            rng=random.Random(1),
        )

    def crash(self) -> None:
        """Die without a word and start again; what was not committed is gone."""
        self.link.drop()
        self.broker.links.remove(self.link)
        self.spool._file._db.close()
        self.spool._file._lock.close()
        self.open()

    def connect(self) -> None:
        self.link.start()
        self.settle_link()

    def settle_link(self) -> None:
        while not self.link.events.empty():
            self.box.handle(self.link.events.get())

    def later(self, seconds: float) -> None:
        self.clock.now += seconds
        self.box.tick()
        self.settle_link()

    def received(self) -> list[FeatureMessage]:
        got = []
        while not self.worker.events.empty():
            event = self.worker.events.get()
            if isinstance(event, Delivery):
                assert event.response_topic == TOPICS.results
                message = FeatureMessage.decode(event.payload)
                assert event.correlation == message.header.sample
                got.append(message)
        return got

    def answer(self, message: FeatureMessage, **fields) -> None:
        result = ResultMessage(MODEL, message.header.sample, label=2, confidence=0.8, entropy=0.1)
        self.worker.publish(TOPICS.results, replace(result, **fields).encode())
        self.settle_link()

    def statuses(self) -> list[tuple[str, str]]:
        return [(r.tier, r.status) for r in self.out]
