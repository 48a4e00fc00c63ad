"""An in-memory broker and link with the same semantics, for tests without a network."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Sequence
from dataclasses import replace

from edge_kit.errors import LinkError
from edge_kit.link.link import (
    Connected,
    Delivery,
    Disconnected,
    Event,
    Published,
    Subscription,
)

__all__ = ["MemoryBroker", "MemoryLink"]


class MemoryBroker:
    """Routes messages between `MemoryLink`s of one process; keeps retained values."""

    def __init__(self) -> None:
        self.links: list[MemoryLink] = []
        self.retained: dict[str, Delivery] = {}
        self.published: list[Delivery] = []
        self._turn = itertools.count()

    def route(self, message: Delivery) -> None:
        """Deliver to every matching subscription, one member of each shared group."""
        self.published.append(message)
        groups: dict[str, list[MemoryLink]] = {}
        for link in [ln for ln in self.links if ln.connected]:
            for sub in link.subscriptions:
                group, topic = _split(sub.topic)
                if not _matches(topic, message.topic):
                    continue
                if group:
                    groups.setdefault(sub.topic, []).append(link)
                else:
                    link.deliver(message)
        for members in groups.values():
            members[next(self._turn) % len(members)].deliver(message)


class MemoryLink:
    """A `Link` to a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, subscriptions: Sequence[Subscription] = ()) -> None:
        self.broker = broker
        self.subscriptions = tuple(subscriptions)
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.generation = 0
        self.connected = False
        self.unacked: dict[int, Delivery] = {}
        self.acked: list[Delivery] = []
        self._mids = itertools.count(1)
        self._tokens = itertools.count(1)
        broker.links.append(self)

    def start(self) -> None:
        """Connect."""
        if self.connected:
            return
        self.connected = True
        self.generation += 1
        self.events.put(Connected(self.generation, session_present=self.generation > 1))
        for message in self.broker.retained.values():
            if any(_matches(_split(s.topic)[1], message.topic) for s in self.subscriptions):
                self.deliver(replace(message, retained=True))

    def drop(self) -> None:
        """Lose the connection, as a test wants it."""
        self.connected = False
        self.unacked.clear()
        self.events.put(Disconnected(self.generation, LinkError("the broker went away")))

    def deliver(self, message: Delivery) -> None:
        """Receive a message."""
        mine = replace(message, mid=next(self._mids), generation=self.generation)
        self.unacked[mine.mid] = mine
        self.events.put(mine)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        qos: int = 1,
        retain: bool = False,
        correlation: bytes | None = None,
        response_topic: str | None = None,
        expiry_s: int | None = None,
    ) -> int:
        """Route at once."""
        if not self.connected:
            raise LinkError("not connected")
        token = next(self._tokens)
        message = Delivery(topic, payload, qos, False, correlation, response_topic, 0, 0)
        if retain:
            self.broker.retained[topic] = message
        self.broker.route(message)
        if qos:
            self.events.put(Published(token, self.generation))
        return token

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge."""
        if delivery.generation == self.generation and delivery.mid in self.unacked:
            del self.unacked[delivery.mid]
            self.acked.append(delivery)

    def stop(self) -> None:
        """Disconnect."""
        if self.connected:
            self.connected = False
            self.events.put(Disconnected(self.generation, None))


def _split(topic: str) -> tuple[str, str]:
    if topic.startswith("$share/"):
        _share, group, rest = topic.split("/", 2)
        return group, rest
    return "", topic


def _matches(pattern: str, topic: str) -> bool:
    want, have = pattern.split("/"), topic.split("/")
    for index, part in enumerate(want):
        if part == "#":
            return True
        if index >= len(have) or part not in ("+", have[index]):
            return False
    return len(want) == len(have)
