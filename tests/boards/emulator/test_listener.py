"""The broker of an emulated device, and what is heard there."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest

from boards.emulator.listener import DeviceListener, broker, broker_port
from boards.onboard.settings import Settings
from edge_kit.errors import ImageError, LinkError
from edge_kit.link.link import Connected, Published
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import Refusal, ResultMessage
from tests.support.mosquitto import free_port


@pytest.mark.parametrize(
    ("url", "port"),
    [("mqtt://10.0.2.2", 1883), ("mqtt://me@10.0.2.2:99/", 99)],
)
def test_port_of_the_broker_comes_from_the_settings(url, port):
    assert broker_port(Settings(run={"broker": url})) == port


@pytest.mark.parametrize("url", ["mqtt://broker.example", "mqtts://10.0.2.2", ""])
def test_broker_out_of_reach_is_an_error(url):
    with pytest.raises(ImageError, match="does not reach"):
        broker_port(Settings(run={"broker": url}))


@pytest.mark.broker
def test_listener_ignores_retained_messages_and_counts_answers(mosquitto):
    def say(topic: str, body: dict | ResultMessage) -> None:
        payload = json.dumps(body).encode() if isinstance(body, dict) else body.encode()
        link.publish(f"edgekit/1/{topic}", payload, qos=1, retain=True)

    link = MqttLink(mosquitto.address, "speaker", [])
    link.start()
    while not isinstance(link.events.get(timeout=30), Connected):
        pass
    say("old/status", {"state": "online"})
    while not isinstance(link.events.get(timeout=30), Published):
        pass
    with broker(mosquitto.port) as started:
        assert not started  # the one that listens is used
        listener = DeviceListener(mosquitto.port)
    try:
        deadline = time.monotonic() + 30
        while (
            not (listener.device and listener.answers and listener.refusals)
            and time.monotonic() < deadline
        ):
            say("edge-1/status", {"state": "online", "engine": "onnx"})
            say("edge-1/state", {"counters": {"frames": 3}})
            answer = ResultMessage(bytes(8), bytes(8), label=1, probabilities=(0.2, 0.8))
            say("edge-1/results", answer)
            say("edge-1/results", replace(answer, refusal=Refusal.ENGINE, probabilities=()))
            say("edge-1/results", {})  # no result at all
            listener.changed.wait(1)
            listener.changed.clear()
    finally:
        listener.close()
        link.stop()
    assert (listener.device, listener.status["engine"]) == ("edge-1", "onnx")
    assert listener.answers >= 1 and listener.refusals >= 1 and listener.counters == {"frames": 3}
    assert listener.answers <= listener.refusals + 1


def test_broker_is_started_where_none_listens():
    port = free_port()
    with broker(port) as started:
        assert started
        DeviceListener(port).close()
    with pytest.raises(LinkError, match="does not answer"):
        DeviceListener(port)
