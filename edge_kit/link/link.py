"""What a link is. Everything that happens to one arrives as an event on a queue.

No user code runs on the network thread: an exception there would kill it silently, and inference
there would starve keep-alive.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from edge_kit.errors import LinkError

__all__ = [
    "Connected",
    "Delivery",
    "Disconnected",
    "Event",
    "Link",
    "Published",
    "Refused",
    "Subscription",
]


@dataclass(frozen=True)
class Subscription:
    """A topic filter to hold whenever connected."""

    topic: str
    qos: int = 1


@dataclass(frozen=True)
class Connected:
    """The broker accepted the connection and confirmed every subscription.

    Attributes:
        generation: Counts connections; ids of an earlier generation are void.
        session_present: The broker remembered the session.
        max_packet: Largest packet that the broker accepts, bytes; 0 when it states no limit.
    """

    generation: int
    session_present: bool
    max_packet: int = 0


@dataclass(frozen=True)
class Disconnected:
    """The connection is gone, or could not be made.

    Attributes:
        generation: The one that ended.
        error: Why, as a sentence for people; None after our own `stop`.
        fatal: True when trying again cannot help (bad credentials, untrusted certificate, another
            client took this id); the link does not reconnect by itself then.
    """

    generation: int
    error: LinkError | None
    fatal: bool = False


@dataclass(frozen=True)
class Delivery:
    """A message that arrived and awaits `Link.ack`.

    Attributes:
        topic: Where it was published.
        payload: Bytes.
        qos: 0, 1 or 2.
        retained: It is the topic's stored value.
        correlation: MQTT 5 correlation data.
        response_topic: MQTT 5 response topic.
        mid: Packet id within `generation`.
        generation: The connection that it came on.
    """

    topic: str
    payload: bytes
    qos: int
    retained: bool
    correlation: bytes | None
    response_topic: str | None
    mid: int
    generation: int


@dataclass(frozen=True)
class Published:
    """The broker acknowledged a publish (PUBACK).

    Attributes:
        token: What `Link.publish` returned.
        generation: The connection.
        refused: The broker's reason when it did not accept the message, such as
            ``Not authorized`` or ``Packet too large``; None when it did.
    """

    token: int
    generation: int
    refused: str | None = None


@dataclass(frozen=True)
class Refused:
    """The broker refused a subscription (SUBACK); `Disconnected` follows.

    Attributes:
        topic: The filter.
        reason: The broker's, such as ``Not authorized``.
    """

    topic: str
    reason: str


Event: TypeAlias = Connected | Disconnected | Delivery | Published | Refused


class Link(Protocol):
    """A connection that keeps itself up.

    Attributes:
        events: What happened, in order. One consumer.
        generation: Number of the current or last connection, from 1; 0 before the first.
    """

    events: queue.SimpleQueue[Event]
    generation: int

    def start(self) -> None:
        """Connect in the background; returns at once."""

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
        """Hand a message to the network thread and return its token.

        Raises:
            LinkError: Not connected. Nothing was queued; the caller keeps the message.
        """

    def ack(self, delivery: Delivery) -> None:
        """Acknowledge; does nothing when the delivery's connection is gone."""

    def stop(self) -> None:
        """Publish nothing more, disconnect cleanly (the will is not sent), join the thread."""
