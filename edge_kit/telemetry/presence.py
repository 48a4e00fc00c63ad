"""Say that the device is here, and notice when another one says so under the same id.

``…/status`` is retained JSON and the connection's last will; ``…/state`` carries counters. A
broker that hands our session to another client often just closes the socket, without the reason
that MQTT 5 has for it. The retained status tells: it names the run that wrote it last, and after
our first announcement only a second device with this id can have put another name there.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from edge_kit.errors import LinkError
from edge_kit.link.connection import Will
from edge_kit.link.link import Connected, Delivery, Event, Link, Published, Subscription
from edge_kit.link.reasons import publish_error
from edge_kit.wire import Topics

__all__ = ["Presence"]

STATE_EVERY_S = 10.0
# How long a reconnected device waits for the retained status before it writes its own.
LOOK_FIRST_S = 2.0


class Presence:
    """The status of one run of one device.

    Args:
        topics: Of the device.
        about: What the status tells besides; JSON values.
        clock: Monotonic, seconds.
        wall: Unix time, seconds.

    Attributes:
        instance: Random name of this run.
        refusal: Why the broker refuses the status; None while it takes it.
    """

    def __init__(
        self,
        topics: Topics,
        about: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.instance = uuid.uuid4().hex
        self.refusal: LinkError | None = None
        self._topics = topics
        self._about = dict(about)
        self._clock = clock
        self._wall = wall
        self._announced_in = 0
        self._announce_at: float | None = None
        self._state_at = 0.0
        self._token: int | None = None

    @property
    def will(self) -> Will:
        """What the broker says when this run ends without a goodbye."""
        return Will(self._topics.status, self._status("offline", "vanished"))

    @property
    def subscription(self) -> Subscription:
        """Our own status. QoS 0, so that no old one is queued for us."""
        return Subscription(self._topics.status, qos=0)

    def handle(self, event: Event, link: Link) -> LinkError | None:
        """Take in an event; return an error when another device uses this id."""
        if isinstance(event, Connected):
            first = self._announced_in == 0
            self._announce_at = self._clock() + (0.0 if first else LOOK_FIRST_S)
            self._state_at = 0.0
            if first:
                self._announce(link, event.generation)
        elif isinstance(event, Delivery) and event.topic == self._topics.status:
            link.ack(event)
            return self._seen(event, link)
        elif isinstance(event, Published) and event.token == self._token:
            refused = event.refused
            self.refusal = publish_error(self._topics.status, refused) if refused else None
        return None

    def tick(self, link: Link, state: Callable[[], Mapping[str, Any]]) -> None:
        """Announce when it is time; publish the state at most every ten seconds."""
        now = self._clock()
        if self._announce_at is not None and now >= self._announce_at:
            self._announce(link, link.generation)
        if self._announced_in == link.generation and now >= self._state_at:
            self._state_at = now + STATE_EVERY_S
            body = {"at": round(self._wall(), 3), **state()}
            _try_publish(link, self._topics.state, _json(body), qos=0, retain=False)

    def deadline(self) -> float | None:
        """Return when `tick` should be called next; None for no need."""
        return self._announce_at

    def leave(self, link: Link) -> None:
        """Say goodbye."""
        status = self._status("offline", "stopped")
        _try_publish(link, self._topics.status, status, qos=1, retain=True)

    def _seen(self, delivery: Delivery, link: Link) -> LinkError | None:
        try:
            instance = json.loads(delivery.payload).get("instance")
        except (ValueError, AttributeError):
            instance = None  # not ours, and it names nobody
        if instance in (None, self.instance):
            if self._announce_at is not None:
                self._announce(link, delivery.generation)
            return None
        if not self._announced_in or delivery.generation <= self._announced_in:
            return None
        device = self._topics.device
        return LinkError(
            f"another device runs with the id {device!r}",
            "give each its own --device-id; two with one id disconnect each other",
        )

    def _announce(self, link: Link, generation: int) -> None:
        self._announce_at = None
        status = self._status("online", "")
        self._token = _try_publish(link, self._topics.status, status, qos=1, retain=True)
        if self._token is not None:
            self._announced_in = generation

    def _status(self, state: str, why: str) -> bytes:
        about = {**self._about, "state": state, "instance": self.instance}
        if why:
            about["why"] = why
        return _json(about)


def _json(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _try_publish(link: Link, topic: str, payload: bytes, *, qos: int, retain: bool) -> int | None:
    try:
        return link.publish(topic, payload, qos=qos, retain=retain)
    except LinkError:
        return None
