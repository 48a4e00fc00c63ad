from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from edge_kit.doctor.broker import check_broker, check_certificate
from edge_kit.doctor.check import Check
from edge_kit.errors import LinkError
from edge_kit.link import Disconnected, MemoryBroker, MemoryLink
from edge_kit.link.address import BrokerAddress
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import Topics
from tests.support.mosquitto import dynamic_security, free_port

ADDRESS = BrokerAddress("hub.local", 1883)
TOPICS = Topics("cam")


def test_broker_that_accepts_is_ok_and_left_again():
    links = []

    def make(_address, _name, _subscriptions):
        links.append(MemoryLink(MemoryBroker()))
        return links[-1]

    check = check_broker(ADDRESS, make, TOPICS)
    assert check.ok
    assert "mqtt://hub.local:1883 accepts us" in check.detail
    assert not links[0].connected
    (probe,) = links[0].broker.published
    assert (probe.topic, probe.payload) == (TOPICS.features, b"")


class Refusing(MemoryLink):
    def start(self):
        self.events.put(Disconnected(0, LinkError("wrong password", "check it"), fatal=True))


class Silent(MemoryLink):
    def start(self):
        pass


def test_broker_that_refuses_or_does_not_answer_fails():
    check = check_broker(ADDRESS, lambda *_: Refusing(MemoryBroker()), TOPICS)
    assert check == Check("broker", False, "wrong password", "check it")
    check = check_broker(ADDRESS, lambda *_: Silent(MemoryBroker()), TOPICS, timeout_s=0.05)
    assert check.ok is False
    assert "does not answer" in check.detail


@pytest.mark.broker
def test_real_broker_with_right_and_wrong_password(make_mosquitto):
    broker = make_mosquitto(users={"me": "right"})
    address = BrokerAddress("127.0.0.1", broker.port, user="me", password="right")
    assert check_broker(address, MqttLink, TOPICS).ok is True
    assert check_broker(replace(address, password="wrong"), MqttLink, TOPICS).ok is False
    nobody = check_broker(BrokerAddress("127.0.0.1", free_port()), MqttLink, TOPICS)
    assert nobody.ok is False
    assert nobody.detail


@pytest.mark.broker
def test_access_list_that_forbids_features_fails(make_mosquitto):
    broker = make_mosquitto(acl="topic readwrite edgekit/1/cam/results\n")
    check = check_broker(broker.address, MqttLink, TOPICS)
    assert check.ok is False
    assert check.detail == (
        "the broker refuses messages on edgekit/1/cam/features (Not authorized)"
    )
    assert "access list" in check.hint


@pytest.mark.broker
def test_broker_that_forbids_the_subscription_fails(make_mosquitto, tmp_path):
    broker = make_mosquitto(extra=dynamic_security(tmp_path, subscribe=False))
    check = check_broker(broker.address, MqttLink, TOPICS)
    assert check.ok is False
    assert "refuses the subscription to edgekit/1/cam/results" in check.detail


# the certificate: of two days


def test_certificate_with_life_left_is_ok_and_tells_when_its_renewal_worked(certificates, tmp_path):
    (tmp_path / "device.crt").write_bytes((certificates / "client.pem").read_bytes())
    notes = {"tried_at": time.time(), "succeeded_at": 1_800_000_000.0, "error": ""}
    (tmp_path / "renewal.json").write_text(json.dumps(notes))
    check = check_certificate(tmp_path / "device.crt", 1_800_000_000.0 - 86400 * 365)
    assert check.ok is True and "renewal worked 2027-01-15" in check.detail


@pytest.mark.parametrize(
    ("days", "ok", "words"), [(1, True, "good for 1 days"), (1.9, None, "expires in 0.1 days"),
                              (3, False, "has expired")],
)  # fmt: skip
def test_certificate_near_its_end_is_a_note_and_an_expired_one_fails(certificates, days, ok, words):
    check = check_certificate(certificates / "client.pem", time.time() + days * 86400)
    assert check.ok is ok and words in check.detail


def test_file_that_is_not_a_certificate_fails(tmp_path):
    (tmp_path / "device.crt").write_text("not PEM")
    check = check_certificate(tmp_path / "device.crt")
    assert check.ok is False and "cannot be read as a PEM certificate" in check.detail
