"""A `Link` over MQTT 5 that keeps itself up.

Each connection gets a paho client of its own, so that nothing of an earlier one survives inside
paho: no message queued while offline, no packet id, no half-sent packet. Who must not lose a
message keeps it until its own proof of success (`edge_kit.delivery.spool`); the broker
keeps the session.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Sequence
from dataclasses import replace

from edge_kit.errors import LinkError
from edge_kit.link.address import BrokerAddress
from edge_kit.link.connection import Connection, End, Session, Will
from edge_kit.link.link import Delivery, Disconnected, Event, Subscription

__all__ = ["BrokerAddress", "MqttLink", "Will"]

BACKOFF_FIRST_S = 1.0
BACKOFF_LAST_S = 30.0
STOP_TIMEOUT_S = 8.0


class MqttLink:
    """A `Link` to a real broker.

    Connected means that every subscription is confirmed. After a loss it reconnects by itself,
    1 s to 30 s apart with jitter, unless the reason is fatal; `start` may then be called again.

    Args:
        broker: Where, and how to prove who we are.
        client_id: Unique at the broker. Two clients with one id are told, not fought over.
        subscriptions: Held on every connection.
        will: What the broker says when this client disconnects without a goodbye.
        clean_start: True forgets an earlier session on each connection.
        session_expiry: Seconds that the broker keeps the session of an absent client.
        receive_maximum: Unacknowledged messages that the broker may send, 1 to 65535.
        keepalive: Seconds of silence before a ping.
    """

    def __init__(
        self,
        broker: BrokerAddress,
        client_id: str,
        subscriptions: Sequence[Subscription] = (),
        will: Will | None = None,
        clean_start: bool = True,
        session_expiry: int = 0,
        receive_maximum: int = 100,
        keepalive: int = 15,
    ) -> None:
        self.broker = broker
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.generation = 0
        self._session = Session(
            client_id,
            tuple(subscriptions),
            will,
            clean_start,
            session_expiry,
            receive_maximum,
            keepalive,
        )
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Connect in the background; returns at once. Does nothing while already running."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="edge-kit-link", daemon=True)
        self._thread.start()

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
        """See `Link.publish`. A message over the broker's limit comes back as refused.

        Raises:
            LinkError: Not connected, or a thousand messages await acknowledgement already.
        """
        connection = self._connection
        if connection is None:
            raise LinkError(f"not connected to {self.broker.url}")
        return connection.publish(
            topic, payload, qos, retain, correlation, response_topic, expiry_s
        )

    def ack(self, delivery: Delivery) -> None:
        """See `Link.ack`."""
        connection = self._connection
        if connection is not None and connection.generation == delivery.generation:
            connection.ack(delivery)

    def stop(self) -> None:
        """See `Link.stop`."""
        with self._lock:
            self._stopping.set()
            if self._connection is not None:
                self._connection.close()
        if self._thread is not None:
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        """Hold one connection after another until stopped, or until trying again cannot help."""
        failures = 0
        while not self._stopping.is_set():
            before = self.generation
            end = self._hold()
            if end is None:
                break
            if end.max_inflight is not None:
                self._session = replace(self._session, max_inflight=end.max_inflight)
                continue
            self.events.put(Disconnected(self.generation, end.error, end.fatal))
            if end.fatal:
                return
            failures = 1 if self.generation > before else failures + 1
            self._stopping.wait(backoff(failures))
        self.events.put(Disconnected(self.generation, None))

    def _hold(self) -> End | None:
        """Make one connection and stay in it until it ends; None after `stop`."""
        try:
            connection = Connection(
                self.broker, self._session, self.generation + 1, self.events, self._opened
            )
        except LinkError as error:
            return End(error, fatal=True)
        with self._lock:
            if self._stopping.is_set():
                return None
            self._connection = connection
        try:
            return connection.run()
        finally:
            self._connection = None

    def _opened(self, generation: int) -> None:
        self.generation = generation


def backoff(failures: int) -> float:
    """Return seconds to wait after the nth failure in a row: 1 doubling to 30, half of it jitter.

    Without jitter, a broker's restart would be met by every device at the same moment.
    """
    full = min(BACKOFF_LAST_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 10))
    return full * random.uniform(0.5, 1.0)
