from __future__ import annotations

import socket
import struct
import threading

import pytest

from edge_kit.link import Connected, Delivery, Disconnected, Subscription
from edge_kit.link.buffered import READ_AHEAD
from edge_kit.link.mqtt import BrokerAddress, MqttLink

WAIT_S = 60.0
CONNACK = bytes([0x20, 3, 0, 0, 0])


def publish(payload: bytes, topic: bytes = b"t") -> bytes:
    """A PUBLISH of QoS 0 without properties."""
    body = struct.pack(">H", len(topic)) + topic + b"\0" + payload
    length, head = len(body), b""
    while True:
        length, digit = divmod(length, 128)
        head += bytes([digit | (0x80 if length else 0)])
        if not length:
            return b"\x30" + head + body


class Peer:
    """Accepts one client and then sends it given pieces, as a broker's socket might."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.received = 0
        self._pieces = pieces
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = BrokerAddress.parse(f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}")
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        with client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.recv(1024)
            client.sendall(CONNACK)
            for piece in self._pieces:
                client.sendall(piece)

    def close(self) -> None:
        self._thread.join(WAIT_S)
        self._listener.close()


def received(pieces: list[bytes]) -> list[bytes]:
    """Return the payloads that a link reads from the pieces until the peer hangs up."""
    peer = Peer(pieces)
    link = MqttLink(peer.address, "reader")
    link.start()
    payloads = []
    try:
        assert isinstance(link.events.get(timeout=WAIT_S), Connected)
        while not isinstance(event := link.events.get(timeout=WAIT_S), Disconnected):
            assert isinstance(event, Delivery)
            payloads.append(event.payload)
    finally:
        link.stop()
        peer.close()
    return payloads


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50])
def test_packets_arrive_whole_however_they_are_cut(size):
    want = [bytes([i]) * (i * 13 % 140) for i in range(40)]
    stream = b"".join(map(publish, want))
    assert received([stream[i : i + size] for i in range(0, len(stream), size)]) == want


def test_buffered_messages_are_handled_before_a_lost_connection():
    want = [b"%d" % i for i in range(500)]
    assert received([b"".join(map(publish, want))]) == want


def test_packet_larger_than_what_is_read_ahead_arrives_between_small_ones():
    want = [b"a", bytes(3 * READ_AHEAD), b"b", bytes(READ_AHEAD), b"c"]
    assert received([b"".join(map(publish, want))]) == want


def test_reading_ahead_is_in_force(monkeypatch):
    sizes = []
    recv = socket.socket.recv
    monkeypatch.setattr(socket.socket, "recv", lambda s, n: sizes.append(n) or recv(s, n))
    assert received([publish(b"x")]) == [b"x"]
    assert READ_AHEAD in sizes


@pytest.mark.broker
def test_burst_over_tls_arrives(make_mosquitto, certificates):
    broker = make_mosquitto(tls=certificates)
    link = MqttLink(broker.address, "reader", [Subscription("t", qos=0)])
    link.start()
    try:
        assert isinstance(link.events.get(timeout=WAIT_S), Connected)
        want = [bytes([i]) * (i * 37) for i in range(200)]
        for payload in want:
            link.publish("t", payload, qos=0)
        got = []
        while len(got) < len(want):
            event = link.events.get(timeout=WAIT_S)
            if isinstance(event, Delivery):
                got.append(event.payload)
    finally:
        link.stop()
    assert got == want
