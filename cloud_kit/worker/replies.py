"""Send answers and acknowledge features, in the order that loses nothing.

A result is published with QoS 1; only its PUBACK releases the acknowledgement of the features,
and only on the connection that they came on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import NamedTuple

from cloud_kit.worker.counters import Counters
from edge_kit.errors import LinkError
from edge_kit.link import Delivery, Link, Published
from edge_kit.wire import Topics

__all__ = ["Replies"]

# A device that stayed away this long resends what it still wants to know.
RESULT_EXPIRY_S = 3600
# Results that may await their PUBACK; the rest waits here, in order. The broker's receive maximum
# would keep us far below this, but mosquitto 2.0.11 counts each of our results as one more message
# that it may send, and a link that is given too much refuses.
MAX_WAITING = 200

_log = logging.getLogger(__name__)


class _Reply(NamedTuple):
    delivery: Delivery
    topic: str
    sample: bytes
    payload: bytes


class Replies:
    """The deliveries that a worker has yet to acknowledge.

    The loop's thread calls `own`, `confirm`, `void`; the engine's thread calls `send`.

    Args:
        link: Where deliveries came from and results go.
        counters: ``answered``, ``undelivered``, ``rejected``.
    """

    def __init__(self, link: Link, counters: Counters) -> None:
        self._link = link
        self._counters = counters
        self._lock = threading.Lock()
        self._owned: set[tuple[int, int]] = set()
        self._waiting: dict[int, tuple[int, Delivery]] = {}
        self._backlog: deque[_Reply] = deque()
        self._held: list[Delivery] | None = None
        self._refusals: set[str] = set()

    @property
    def owned(self) -> int:
        """Deliveries of the present connection whose answer is not yet with the broker."""
        with self._lock:
            return len(self._owned)

    def own(self, delivery: Delivery) -> None:
        """Take responsibility for a delivery."""
        with self._lock:
            self._owned.add(_key(delivery))

    def send(self, delivery: Delivery, topics: Topics, sample: bytes, payload: bytes) -> None:
        """Publish an encoded result and remember what its PUBACK will release.

        Without a connection the answer is dropped: the device resends, and the resend is
        answered from memory.
        """
        with self._lock:
            self._backlog.append(_Reply(delivery, topics.results, sample, payload))
            self._publish()

    def _publish(self) -> None:
        """Send what there is room for. The lock is held: a PUBACK must not overtake its entry."""
        while self._backlog and len(self._waiting) < MAX_WAITING:
            reply = self._backlog.popleft()
            try:
                token = self._link.publish(
                    reply.topic,
                    reply.payload,
                    qos=1,
                    correlation=reply.sample,
                    expiry_s=RESULT_EXPIRY_S,
                )
            except LinkError as error:
                self._counters.add("undelivered")
                self._owned.discard(_key(reply.delivery))
                _log.debug("no connection for the result of %s: %s", reply.sample.hex(), error)
            else:
                self._waiting[token] = self._link.generation, reply.delivery

    def drop(self, delivery: Delivery) -> None:
        """Acknowledge what cannot be answered."""
        self._acknowledge(delivery)

    def confirm(self, event: Published) -> None:
        """Acknowledge the features whose result the broker took, or never will."""
        with self._lock:
            _generation, delivery = self._waiting.pop(event.token, (0, None))
            self._publish()
        if delivery is None:
            return
        if event.refused:
            self._counters.add("rejected")
            self._say_once(event.refused, delivery)
        else:
            self._counters.add("answered")
        self._acknowledge(delivery)

    def _say_once(self, reason: str, delivery: Delivery) -> None:
        """Say why the broker refuses results; the counter tells how often."""
        if reason not in self._refusals:
            self._refusals.add(reason)
            _log.warning(
                "the broker refuses results such as the one for %s (%s); "
                "check that its access list lets this worker publish them",
                delivery.topic,
                reason,
            )

    def void(self, generation: int) -> None:
        """Forget what belonged to connections up to `generation`: they are gone."""
        with self._lock:
            gone = sum(w[0] <= generation for w in self._waiting.values())
            self._counters.add("undelivered", len(self._backlog) + gone)
            self._backlog.clear()
            self._owned = {key for key in self._owned if key[0] > generation}
            self._waiting = {t: w for t, w in self._waiting.items() if w[0] > generation}
            if self._held is not None:
                self._held = [d for d in self._held if d.generation > generation]

    def hold(self) -> None:
        """Keep acknowledgements back from now on, so that the broker sends nothing new."""
        with self._lock:
            if self._held is None:
                self._held = []

    def release(self) -> None:
        """Send the acknowledgements that `hold` kept back."""
        with self._lock:
            held, self._held = self._held or [], None
        for delivery in held:
            self._link.ack(delivery)

    def _acknowledge(self, delivery: Delivery) -> None:
        with self._lock:
            self._owned.discard(_key(delivery))
            if self._held is not None:
                self._held.append(delivery)
                return
        self._link.ack(delivery)


def _key(delivery: Delivery) -> tuple[int, int]:
    return delivery.generation, delivery.mid
