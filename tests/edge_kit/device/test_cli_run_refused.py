"""A broker whose access list forbids what the device needs, as a process."""

from __future__ import annotations

import json

import pytest

from edge_kit.link import Delivery, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import Topics
from tests.support.device import DOUBTFUL, PHOTOS, WAIT_S, finish, kinds
from tests.support.mosquitto import dynamic_security

pytestmark = pytest.mark.broker

ALL_BUT_FEATURES = "".join(
    f"topic readwrite edgekit/1/cam/{name}\n" for name in ("results", "status", "state")
)


def test_features_that_the_access_list_forbids_are_said_once_counted_and_end_with_6(
    edge, make_mosquitto
):
    broker = make_mosquitto(acl=ALL_BUT_FEATURES)
    code, lines, err = finish(edge("--json", "--broker", broker.url))
    run, answers = lines[-1]["summary"]["run"], kinds(lines)
    assert len(answers) == PHOTOS
    assert all(answers[n] == ["device provisional", "device standing"] for n in range(0, PHOTOS, 2))
    assert (run["publish_refused"], run["refused"], run["standing"]) == (DOUBTFUL,) * 3
    assert (run["lost"], run["pending"]) == (0, 0)
    why = "the broker refuses messages on edgekit/1/cam/features (Not authorized)"
    said, error = err.split("edge-kit: error: ")
    assert said.count(why) == 1 and error.startswith(f"{why}; check the broker's access list")
    assert code == 6


def test_refusal_of_features_is_in_the_state(edge, make_mosquitto):
    broker = make_mosquitto(acl=ALL_BUT_FEATURES)
    watcher = MqttLink(broker.address, "watcher", [Subscription(Topics("cam").state)])
    watcher.start()
    edge("--json", "--broker", broker.url, "--fps", "1")
    while True:
        event = watcher.events.get(timeout=WAIT_S)
        if isinstance(event, Delivery):
            state = json.loads(event.payload)
            if state["problems"]:
                break
    watcher.stop()
    assert "refuses messages on edgekit/1/cam/features" in state["problems"][0]
    assert state["counters"]["publish_refused"] > 0


def test_status_that_the_access_list_forbids_is_said_and_samples_are_answered(
    edge, make_mosquitto, make_worker
):
    only = "topic readwrite edgekit/1/cam/features\ntopic readwrite edgekit/1/cam/results\n"
    broker = make_mosquitto(acl=only + "topic readwrite $share/w/edgekit/1/+/features\n")
    make_worker(broker)
    code, lines, err = finish(edge("--json", "--broker", broker.url))
    run = lines[-1]["summary"]["run"]
    assert (code, run["answered"], run["lost"]) == (0, DOUBTFUL, 0)
    assert err.count("refuses messages on edgekit/1/cam/status (Not authorized)") == 1
    assert run["publish_refused"] >= 1


def test_subscription_that_the_broker_forbids_ends_the_run_with_6(edge, make_mosquitto, tmp_path):
    broker = make_mosquitto(extra=dynamic_security(tmp_path, subscribe=False))
    code, _lines, err = finish(edge("--json", "--broker", broker.url, "--fps", "2"))
    assert code == 6 and "Traceback" not in err
    assert "refuses the subscription to edgekit/1/cam/results (Not authorized)" in err
    assert "check the broker's access list" in err


def test_subscription_that_the_broker_forbids_keeps_samples_where_the_device_keeps_trying(
    edge, make_mosquitto, tmp_path
):
    broker = make_mosquitto(extra=dynamic_security(tmp_path, subscribe=False))
    config = tmp_path / "edge-kit.toml"
    config.write_text("keep_trying = true\nlinger = 5\n")
    args = ("--json", "--broker", broker.url, "--config", str(config))
    code, lines, err = finish(edge(*args, "--fps", "6"))
    run = lines[-1]["summary"]["run"]
    assert code == 6 and err.count("refuses the subscription") == 2  # once, and at the end
    assert (run["pending"], run["subscribe_refused"] > 0) == (DOUBTFUL, True)
