"""One connection of an `MqttLink`: one paho client, used once.

Every callback runs on the network thread and only puts an event on the queue. paho lets an
exception in a callback kill that thread silently; here it ends the connection with a sentence.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import queue
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, LogLevel
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from edge_kit.errors import LinkError
from edge_kit.link import reasons
from edge_kit.link.address import BrokerAddress
from edge_kit.link.buffered import BufferedClient
from edge_kit.link.link import Connected, Delivery, Event, Published, Refused, Subscription
from edge_kit.link.properties import PublishProperties
from edge_kit.wire import CONTENT_TYPE

__all__ = ["Connection", "End", "Session", "Will"]

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
LOOP_TIMEOUT_S = 1.0
MAX_QUEUED = 1000
# Fixed header, packet id, property length, content type and expiry of a PUBLISH, rounded up.
_OVERHEAD = 64


@dataclass(frozen=True)
class Will:
    """What the broker publishes when this client disconnects without a goodbye.

    Attributes:
        topic: Where.
        payload: What.
        qos: 0 or 1.
        retain: Keep it as the topic's value.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = True


@dataclass(frozen=True)
class Session:
    """What a client asks for when it connects.

    Attributes:
        client_id: Unique at the broker.
        subscriptions: Held on every connection.
        will: Last will, or None.
        clean_start: Forget an earlier session.
        expiry_s: How long the broker keeps the session of an absent client; 0 ends it at once.
        receive_maximum: Unacknowledged messages that the broker may send.
        keepalive_s: Silence after which a ping is sent.
        max_inflight: Unacknowledged messages that this client sends.
    """

    client_id: str
    subscriptions: tuple[Subscription, ...] = ()
    will: Will | None = None
    clean_start: bool = True
    expiry_s: int = 0
    receive_maximum: int = 100
    keepalive_s: int = 15
    max_inflight: int = 20


@dataclass(frozen=True)
class End:
    """Why a connection ended.

    Attributes:
        error: The sentence.
        fatal: Trying again cannot help.
        max_inflight: The broker allows only this many; connect again at once with it.
    """

    error: LinkError
    fatal: bool = False
    max_inflight: int | None = None


def _guarded(callback: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(callback)
    def call(self: Connection, *args: Any) -> None:
        try:
            callback(self, *args)
        except Exception as error:
            _log.exception("a callback of the link failed")
            self._finish(End(LinkError(f"internal error in the link: {error!r}"), fatal=True))

    return call


class Connection:
    """Connect, hold, and report one connection.

    Args:
        address: The broker.
        session: What to ask for.
        generation: The number of this connection once accepted.
        events: Where its events go.
        opened: Told the generation just before `Connected` is put on the queue.
    """

    def __init__(
        self,
        address: BrokerAddress,
        session: Session,
        generation: int,
        events: queue.SimpleQueue[Event],
        opened: Callable[[int], None],
    ) -> None:
        self.address = address
        self.session = session
        self.generation = generation
        self.connected = False
        self._events = events
        self._opened = opened
        self._early: list[Delivery] = []
        self._max_packet = 0
        self._session_present = False
        self._closing = False
        self._answered = False
        self._end: End | None = None
        self._trouble = ""
        self._oversized = itertools.count(-1, -1)
        self._client = self._make_client()

    def run(self) -> End | None:
        """Connect and stay until the connection is over; None after `close`."""
        try:
            self._client.connect(
                self.address.host,
                self.address.port,
                keepalive=self.session.keepalive_s,
                clean_start=self.session.clean_start,
                properties=self._connect_properties(),
            )
            if self._closing:
                self._client.disconnect()
            # Not loop_forever: only `loop` makes the socket pair with which `publish` wakes it.
            while self._client.loop(LOOP_TIMEOUT_S) == paho.MQTT_ERR_SUCCESS:
                self._client.drain()
        except (OSError, ValueError) as error:
            self._end = self._end or End(*reasons.connect_error(self.address, error))
        except Exception as error:  # paho parses what a broker sends; garbage may raise anything
            what = f"{self.address.url} sent what is not valid MQTT 5: {error!r}"
            self._end = self._end or End(LinkError(what, "check that it is an MQTT broker"))
        finally:
            self.connected = False
            self._let_go()
        if self._closing:
            return None
        if not self._answered and self._end is None:
            return End(reasons.no_answer(self.address))
        return self._end or End(LinkError(f"the connection to {self.address.url} was lost"))

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        retain: bool,
        correlation: bytes | None,
        response_topic: str | None,
        expiry_s: int | None,
    ) -> int:
        """See `Link.publish`."""
        if not self.connected:
            raise LinkError(f"not connected to {self.address.url}")
        props = PublishProperties(
            expiry_s=expiry_s,
            content_type=None if correlation is None else CONTENT_TYPE,
            response_topic=response_topic,
            correlation=correlation,
        )
        size = len(payload) + len(topic) + len(correlation or b"") + len(response_topic or "")
        if self._max_packet and size + _OVERHEAD > self._max_packet:
            token = next(self._oversized)
            why = f"Packet too large: {size} bytes, the broker takes {self._max_packet}"
            self._events.put(Published(token, self.generation, why))
            return token
        info = self._client.publish(topic, payload, qos, retain, props)
        if info.rc != paho.MQTT_ERR_SUCCESS:
            # Whatever paho queued dies with this client; the caller keeps the message.
            raise LinkError(f"cannot publish to {self.address.url}: {paho.error_string(info.rc)}")
        # Packet ids are reused once acknowledged, and only within one generation.
        return (self.generation << 16) | info.mid

    def ack(self, delivery: Delivery) -> None:
        """Send the PUBACK of a delivery of this connection."""
        if self.connected and delivery.qos:
            self._client.ack(delivery.mid, delivery.qos)

    def close(self) -> None:
        """Say goodbye, after what was published so far; `run` returns soon."""
        self._closing = True
        self.connected = False
        self._client.disconnect()

    def _make_client(self) -> BufferedClient:
        client = BufferedClient(
            CallbackAPIVersion.VERSION2,
            client_id=self.session.client_id,
            protocol=paho.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        client.connect_timeout = CONNECT_TIMEOUT_S
        client.max_inflight_messages_set(self.session.max_inflight)
        client.max_queued_messages_set(MAX_QUEUED)
        if self.address.user:
            client.username_pw_set(self.address.user, self.address.password or None)
        if self.address.tls:
            client.tls_set_context(reasons.tls_context(self.address))
        if self.session.will:
            will = self.session.will
            client.will_set(will.topic, will.payload, will.qos, will.retain)
        client.on_socket_open = _set_nodelay
        # With this set, publishing threads wake the network thread instead of writing themselves:
        # two writers would interleave partial packets.
        client.on_socket_register_write = lambda *_: None
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_disconnect = self._on_disconnect
        client.on_log = self._on_log
        return client

    def _let_go(self) -> None:
        """Break the cycle with the client, so that it closes its sockets now and not some day."""
        client = self._client
        client.on_connect = client.on_subscribe = client.on_message = None
        client.on_publish = client.on_disconnect = client.on_log = None

    def _connect_properties(self) -> Properties:
        props = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        props.SessionExpiryInterval = self.session.expiry_s
        props.ReceiveMaximum = self.session.receive_maximum
        return props

    def _finish(self, end: End) -> None:
        """Keep the first reason, and end the connection."""
        self._end = self._end or end
        self.connected = False
        self._client.disconnect()

    @_guarded
    def _on_connect(
        self, client: paho.Client, _data: Any, flags: Any, reason: ReasonCode, props: Properties
    ) -> None:
        self._answered = True
        if reason.is_failure:
            self._end = End(*reasons.refusal_error(self.address, reason.value, str(reason)))
            return
        client.on_log = None
        allowed = getattr(props, "ReceiveMaximum", 65535)
        if allowed < self.session.max_inflight:
            # paho takes this limit only before it connects.
            self._finish(End(LinkError("the broker wants a smaller window"), False, allowed))
            return
        self._max_packet = getattr(props, "MaximumPacketSize", 0)
        self._session_present = bool(flags.session_present)
        if self.session.subscriptions:
            client.subscribe([(s.topic, _options(s)) for s in self.session.subscriptions])
        else:
            self._open()

    @_guarded
    def _on_subscribe(
        self, _client: paho.Client, _data: Any, _mid: int, codes: list[ReasonCode], _props: Any
    ) -> None:
        for wanted, code in zip(self.session.subscriptions, codes, strict=True):
            if code.is_failure:
                self._events.put(Refused(wanted.topic, str(code)))
                error = reasons.subscribe_error(self.address, wanted.topic, str(code))
                self._finish(End(error, fatal=True))
        if self._end is None:
            self._open()

    def _open(self) -> None:
        if self._closing:
            return
        self._opened(self.generation)
        self.connected = True
        self._events.put(Connected(self.generation, self._session_present, self._max_packet))
        for delivery in self._early:
            self._events.put(delivery)
        self._early.clear()

    @_guarded
    def _on_message(self, _client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
        props = message.properties
        delivery = Delivery(
            topic=message.topic,
            payload=bytes(message.payload),
            qos=message.qos,
            retained=bool(message.retain),
            correlation=getattr(props, "CorrelationData", None),
            response_topic=getattr(props, "ResponseTopic", None),
            mid=message.mid,
            generation=self.generation,
        )
        # A resumed session delivers before it confirms the subscriptions: `Connected` comes first.
        if self.connected:
            self._events.put(delivery)
        else:
            self._early.append(delivery)

    @_guarded
    def _on_publish(
        self, _client: paho.Client, _data: Any, mid: int, reason: ReasonCode, _props: Any
    ) -> None:
        refused = str(reason) if reason.value >= 0x80 else None
        self._events.put(Published((self.generation << 16) | mid, self.generation, refused))

    @_guarded
    def _on_disconnect(
        self, _client: paho.Client, _data: Any, flags: Any, reason: ReasonCode, _props: Any
    ) -> None:
        self.connected = False
        if self._end or self._closing:
            return
        if "SSL" in self._trouble:
            alert = "ALERT" in self._trouble.upper()
            self._end = End(reasons.tls_alert(self.address, self._trouble), fatal=alert)
            return
        if not self._answered:
            return
        by_broker = bool(flags.is_disconnect_packet_from_server)
        name = self.session.client_id
        end = reasons.disconnect_error(self.address, reason.value, str(reason), name, by_broker)
        self._end = End(*end)

    def _on_log(self, _client: paho.Client, _data: Any, level: int, text: str) -> None:
        # A TLS 1.3 broker refuses a client's certificate after the handshake; paho only logs that.
        if level == LogLevel.MQTT_LOG_ERR:
            self._trouble = text


def _options(subscription: Subscription) -> SubscribeOptions:
    return SubscribeOptions(qos=subscription.qos)


def _set_nodelay(_client: paho.Client, _data: Any, sock: Any) -> None:
    with contextlib.suppress(OSError, AttributeError):
        raw: socket.socket | ssl.SSLSocket = sock
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
