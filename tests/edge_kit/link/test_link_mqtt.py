from __future__ import annotations

import queue
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from edge_kit.errors import ConfigError, LinkError
from edge_kit.link import Connected, Delivery, Disconnected, Published, Refused, Subscription
from edge_kit.link import mqtt as mqtt_module
from edge_kit.link.address import BrokerAddress
from edge_kit.link.mqtt import MqttLink, Will, backoff
from tests.support.mosquitto import Mosquitto, free_port

pytestmark = pytest.mark.broker

T = TypeVar("T")
WAIT_S = 30.0


def expect(link: MqttLink, kind: type[T]) -> T:
    """Return the next event of `kind`, skipping others."""
    while True:
        event = link.events.get(timeout=WAIT_S)
        if isinstance(event, kind):
            return event


@pytest.fixture
def connect() -> Iterator[Callable[..., MqttLink]]:
    links: list[MqttLink] = []

    def make(broker: BrokerAddress, client_id: str, *topics: str, **options) -> MqttLink:
        link = MqttLink(broker, client_id, [Subscription(t) for t in topics], **options)
        links.append(link)
        link.start()
        return link

    yield make
    for link in links:
        link.stop()


def test_message_arrives_with_its_properties_and_is_acknowledged(mosquitto, connect):
    inbox = connect(mosquitto.address, "inbox", "a/b")
    assert expect(inbox, Connected) == Connected(1, False, 0)
    outbox = connect(mosquitto.address, "outbox")
    expect(outbox, Connected)

    token = outbox.publish("a/b", b"\x00\xff", correlation=b"id", response_topic="r", expiry_s=60)
    got = expect(inbox, Delivery)
    inbox.ack(got)

    assert expect(outbox, Published) == Published(token, 1)
    assert (got.topic, got.payload, got.qos) == ("a/b", b"\x00\xff", 1)
    assert (got.correlation, got.response_topic) == (b"id", "r")


def test_unacknowledged_message_of_a_lasting_session_comes_again(mosquitto, connect):
    options = {"clean_start": False, "session_expiry": 3600}
    first = connect(mosquitto.address, "inbox", "t", **options)
    expect(first, Connected)
    outbox = connect(mosquitto.address, "outbox")
    expect(outbox, Connected)
    for payload in (b"1", b"2"):
        outbox.publish("t", payload)
    one, two = expect(first, Delivery), expect(first, Delivery)
    first.ack(one)
    assert two.payload == b"2"
    first.stop()

    second = connect(mosquitto.address, "inbox", "t", **options)
    # The broker delivers before it confirms the subscription; the link still says Connected first.
    event = second.events.get(timeout=WAIT_S)
    assert isinstance(event, Connected) and event.session_present
    assert expect(second, Delivery).payload == b"2"


def test_ack_of_an_earlier_connection_is_void(mosquitto, connect):
    link = connect(mosquitto.address, "inbox", "t", clean_start=False, session_expiry=3600)
    expect(link, Connected)
    link.publish("t", b"x")
    old = expect(link, Delivery)
    mosquitto.restart()
    expect(link, Disconnected)
    assert expect(link, Connected).generation == 2
    link.ack(old)
    link.publish("t", b"y")
    assert expect(link, Delivery).payload == b"y"


def test_publishing_while_offline_raises_and_queues_nothing(mosquitto, connect):
    link = connect(mosquitto.address, "device", "t")
    expect(link, Connected)
    mosquitto.kill()
    gone = expect(link, Disconnected)
    assert gone.error is not None and not gone.fatal and gone.generation == 1
    with pytest.raises(LinkError, match="not connected"):
        link.publish("t", b"lost")
    mosquitto.start()
    expect(link, Connected)
    link.publish("t", b"kept")
    assert expect(link, Delivery).payload == b"kept"


def test_publishing_before_the_first_connection_raises(connect):
    link = connect(BrokerAddress("127.0.0.1", free_port()), "device")
    with pytest.raises(LinkError, match="not connected"):
        link.publish("t", b"")
    error = expect(link, Disconnected).error
    assert error is not None and "nothing listens" in str(error)


def test_more_messages_than_the_window_all_arrive_in_order(mosquitto, connect):
    inbox = connect(mosquitto.address, "inbox", "t", receive_maximum=500)
    expect(inbox, Connected)
    outbox = connect(mosquitto.address, "outbox")
    expect(outbox, Connected)
    tokens = [outbox.publish("t", str(n).encode()) for n in range(200)]
    assert [expect(outbox, Published).token for _ in tokens] == tokens
    assert [int(expect(inbox, Delivery).payload) for _ in tokens] == list(range(200))


def test_broker_with_a_smaller_window_is_obeyed(make_mosquitto, connect):
    broker = make_mosquitto(extra="max_inflight_messages 3")
    link = connect(broker.address, "device", "t", receive_maximum=3)
    assert expect(link, Connected).generation == 1
    for n in range(20):
        link.publish("t", str(n).encode())
    for n in range(20):
        got = expect(link, Delivery)
        link.ack(got)
        assert int(got.payload) == n


def test_tcp_nodelay_is_set(mosquitto, connect):
    link = connect(mosquitto.address, "device")
    expect(link, Connected)
    sock = link._connection._client.socket()
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_session_taken_over_is_fatal_without_a_reconnection(connect):
    # mosquitto 2.0 closes the older connection without saying why; other brokers send 0x8E.
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        link = connect(BrokerAddress("127.0.0.1", server.getsockname()[1]), "twin")
        peer, _addr = server.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(bytes.fromhex("2003000000") + bytes.fromhex("e0028e00"))
            gone = expect(link, Disconnected)
    assert gone.fatal and "'twin'" in str(gone.error) and "--device-id" in str(gone.error)
    link._thread.join(WAIT_S)
    assert not link._thread.is_alive()


def test_will_is_published_after_a_crash_and_not_after_a_goodbye(mosquitto, connect):
    watcher = connect(mosquitto.address, "watcher", "status", "done")
    expect(watcher, Connected)
    polite = connect(mosquitto.address, "polite", will=Will("status", b"polite"))
    expect(polite, Connected)
    polite.stop()
    watcher.publish("done", b"after the goodbye")
    assert expect(watcher, Delivery).topic == "done"
    rude = connect(mosquitto.address, "rude", will=Will("status", b"rude"))
    expect(rude, Connected)
    rude._connection._client.socket().shutdown(socket.SHUT_RDWR)
    assert expect(watcher, Delivery).payload == b"rude"


def test_refused_subscription_is_fatal(connect):
    # mosquitto's access list accepts the subscription and stays silent; other brokers send 0x87.
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        link = connect(BrokerAddress("127.0.0.1", server.getsockname()[1]), "d", "mine", "secret")
        peer, _addr = server.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(bytes.fromhex("2003000000"))
            packet_id = peer.recv(1000)[2:4]
            peer.sendall(b"\x90\x05" + packet_id + b"\x00\x01\x87")
            refused, gone = expect(link, Refused), expect(link, Disconnected)
    assert refused == Refused("secret", "Not authorized")
    assert gone.fatal and "subscription to secret (Not authorized)" in str(gone.error)


def test_wrong_password_is_fatal_with_a_sentence(make_mosquitto, connect):
    broker = make_mosquitto(users={"cam": "right"})
    url = f"mqtt://cam@127.0.0.1:{broker.port}"
    good = connect(BrokerAddress.parse(url, password="right"), "good")
    expect(good, Connected)
    bad = connect(BrokerAddress.parse(url, password="wrong"), "bad")
    gone = expect(bad, Disconnected)
    assert gone.fatal and "wrong user or password" in str(gone.error)
    assert "wrong" not in repr(bad.broker)


def test_message_over_the_brokers_packet_limit_is_refused_and_the_link_lives(
    make_mosquitto, connect
):
    broker = make_mosquitto(extra="max_packet_size 1000")
    link = connect(broker.address, "device", "t")
    assert expect(link, Connected).max_packet == 1000
    token = link.publish("t", bytes(2000))
    refused = expect(link, Published)
    assert refused.token == token and "too large" in (refused.refused or "")
    link.publish("t", bytes(100))
    assert len(expect(link, Delivery).payload) == 100


def test_refused_publish_says_why(make_mosquitto, connect):
    broker = make_mosquitto(acl="topic readwrite mine/#\n")
    link = connect(broker.address, "device")
    expect(link, Connected)
    link.publish("mine/x", b"")
    assert expect(link, Published).refused is None
    link.publish("other/x", b"")
    assert "authorized" in (expect(link, Published).refused or "").lower()


def tls_broker(certificates: Path, make: Callable[..., Mosquitto], server: str, **options):
    root = certificates / f"as-{server}"
    root.mkdir(exist_ok=True)
    for name, source in (("ca.pem", "ca.pem"), ("server.pem", f"{server}.pem"),
                         ("server.key", f"{server}.key")):  # fmt: skip
        (root / name).write_bytes((certificates / source).read_bytes())
    return make(tls=root, **options)


def test_tls_with_the_right_authority_connects(certificates, make_mosquitto, connect):
    broker = tls_broker(certificates, make_mosquitto, "server")
    link = connect(broker.address, "device", "t")
    expect(link, Connected)
    link.publish("t", bytes(100_000))
    assert len(expect(link, Delivery).payload) == 100_000


@pytest.mark.parametrize(
    ("server", "ca", "sentence"),
    [
        ("server", "other-ca.pem", "not signed by a trusted authority"),
        ("server", None, "not signed by a trusted authority"),
        ("elsewhere", "ca.pem", "made for another host name"),
        ("expired", "ca.pem", "has expired"),
    ],
)
def test_wrong_server_certificate_is_fatal_with_a_sentence(
    certificates, make_mosquitto, connect, server, ca, sentence
):
    broker = tls_broker(certificates, make_mosquitto, server)
    address = BrokerAddress("127.0.0.1", broker.port, tls=True, ca=ca and certificates / ca)
    gone = expect(connect(address, "device"), Disconnected)
    assert gone.fatal and sentence in str(gone.error)


@pytest.mark.parametrize(
    ("client", "sentence"),
    [
        (None, "wants a client certificate"),
        ("stranger", "does not accept this client's certificate"),
    ],
)
def test_missing_or_foreign_client_certificate_is_fatal_with_a_sentence(
    certificates, make_mosquitto, connect, client, sentence
):
    broker = tls_broker(certificates, make_mosquitto, "server", client_certs=True)
    files = {}
    if client:
        files = {"cert": certificates / f"{client}.pem", "key": certificates / f"{client}.key"}
    address = BrokerAddress.parse(broker.url, ca=certificates / "ca.pem", **files)
    gone = expect(connect(address, "device"), Disconnected)
    assert gone.fatal and sentence in str(gone.error)


def test_right_client_certificate_connects(certificates, make_mosquitto, connect):
    broker = tls_broker(certificates, make_mosquitto, "server", client_certs=True)
    address = BrokerAddress.parse(
        broker.url,
        ca=certificates / "ca.pem",
        cert=certificates / "client.pem",
        key=certificates / "client.key",
    )
    expect(connect(address, "device"), Connected)


def test_tls_towards_a_plain_port_gets_a_sentence(mosquitto, connect):
    link = connect(BrokerAddress("127.0.0.1", mosquitto.port, tls=True), "device")
    error = str(expect(link, Disconnected).error)
    assert "TLS" in error or "lost" in error


def test_unreadable_ca_file_is_fatal_with_a_sentence(tmp_path, connect):
    (tmp_path / "ca.pem").write_text("no certificate")
    address = BrokerAddress("127.0.0.1", free_port(), tls=True, ca=tmp_path / "ca.pem")
    gone = expect(connect(address, "device"), Disconnected)
    assert gone.fatal and "cannot be used" in str(gone.error)


def test_unknown_host_gets_a_sentence(connect):
    gone = expect(connect(BrokerAddress("no-such-host.invalid", 1883), "device"), Disconnected)
    assert not gone.fatal and "cannot be resolved" in str(gone.error)


def test_port_that_talks_something_else_ends_the_attempt_not_the_link(connect, monkeypatch):
    monkeypatch.setattr(mqtt_module, "BACKOFF_FIRST_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        link = connect(BrokerAddress("127.0.0.1", server.getsockname()[1]), "device")
        for _ in range(2):
            peer, _addr = server.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"\x20\x7f\xff\xffHTTP/1.1 400 what is this\r\n\r\n" + bytes(200))
            assert isinstance(link.events.get(timeout=WAIT_S), Disconnected)


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 400 what is this\r\n\r\n", b"SSH-2.0-x\r\n"])
def test_port_without_a_broker_is_an_error_that_says_so(connect, reply):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        link = connect(BrokerAddress("127.0.0.1", server.getsockname()[1]), "device")
        peer, _addr = server.accept()
        with peer:
            peer.recv(1000)
            peer.sendall(reply)
        gone = expect(link, Disconnected)
        assert not gone.fatal and "MQTT broker" in str(gone.error)


def test_exception_in_a_callback_is_reported_not_swallowed(mosquitto, connect, caplog):
    link = connect(mosquitto.address, "device", "t")
    expect(link, Connected)
    link._connection._on_message(None, None, object())
    gone = expect(link, Disconnected)
    assert gone.fatal and "internal error" in str(gone.error)


def test_stop_ends_the_thread_and_start_connects_again(mosquitto, connect):
    link = connect(mosquitto.address, "device")
    expect(link, Connected)
    link.stop()
    assert expect(link, Disconnected).error is None
    assert link.events.empty()
    link.start()
    assert expect(link, Connected).generation == 2


def test_backoff_grows_to_thirty_seconds_with_jitter():
    assert all(0.5 <= backoff(1) <= 1.0 for _ in range(50))
    assert all(15.0 <= backoff(n) <= 30.0 for n in (6, 20, 5000))
    assert len({backoff(3) for _ in range(10)}) > 1


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "user"),
    [
        ("mqtt://broker", "broker", 1883, False, ""),
        ("mqtts://cam-1@broker.example:9000", "broker.example", 9000, True, "cam-1"),
        ("10.0.0.1:2000", "10.0.0.1", 2000, False, ""),
        ("mqtt://[::1]:1884", "::1", 1884, False, ""),
    ],
)
def test_addresses_are_read(url, host, port, tls, user):
    address = BrokerAddress.parse(url)
    assert (address.host, address.port, address.tls, address.user) == (host, port, tls, user)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mqtt://cam:hunter2@broker", "holds a password"),
        ("http://broker", "not mqtt or mqtts"),
        ("mqtt://", "is not valid"),
        ("mqtt://broker:99999", "99999|ort"),
        ("mqtt://broker/path", "is not valid"),
    ],
)
def test_invalid_addresses_are_refused_without_showing_a_password(url, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        BrokerAddress.parse(url)
    assert "hunter2" not in str(caught.value)


def test_certificates_without_tls_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="not encrypted"):
        BrokerAddress.parse("mqtt://broker", ca=tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match="no CA file"):
        BrokerAddress.parse("mqtts://broker", ca=tmp_path / "ca.pem")
    with pytest.raises(ConfigError, match=r"CA file .* cannot be read: Is a directory"):
        BrokerAddress.parse("mqtts://broker", ca=tmp_path)
    with pytest.raises(ConfigError, match="no user"):
        BrokerAddress.parse("mqtts://broker", password="x")


def test_events_is_a_plain_queue(mosquitto):
    assert isinstance(MqttLink(mosquitto.address, "x").events, queue.SimpleQueue)
