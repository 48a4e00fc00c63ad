from __future__ import annotations

import pytest

from edge_kit.errors import LinkError
from edge_kit.host.broker import broker_process
from edge_kit.link import Connected
from edge_kit.link.mqtt import BrokerAddress, MqttLink
from tests.support.messages import TIMEOUT


@pytest.mark.broker
def test_broker_serves_loopback_and_ends_with_its_block():
    with broker_process() as broker:
        link = MqttLink(BrokerAddress.parse(broker.url), "probe")
        link.start()
        event = link.events.get(timeout=TIMEOUT)
        link.stop()
        assert isinstance(event, Connected)
        assert event.max_packet == 1 << 20
    assert broker.process.poll() is not None


@pytest.mark.broker
def test_taken_port_is_named():
    with (
        broker_process() as broker,
        pytest.raises(LinkError, match="cannot be used"),
        broker_process(broker.port),
    ):
        pass


def test_missing_broker_says_what_to_install(monkeypatch):
    monkeypatch.setattr("edge_kit.host.broker.find_mosquitto", lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LinkError, match="apt install mosquitto"), broker_process():
        pass
