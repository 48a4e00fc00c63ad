"""The connection to a broker: one Protocol, the MQTT one, and an in-memory twin."""

from edge_kit.link.link import (
    Connected,
    Delivery,
    Disconnected,
    Event,
    Link,
    Published,
    Refused,
    Subscription,
)
from edge_kit.link.memory import MemoryBroker, MemoryLink

__all__ = [
    "Connected",
    "Delivery",
    "Disconnected",
    "Event",
    "Link",
    "MemoryBroker",
    "MemoryLink",
    "Published",
    "Refused",
    "Subscription",
]
