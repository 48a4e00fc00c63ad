from __future__ import annotations

import json

import pytest

from edge_kit.link import Delivery, MemoryBroker, MemoryLink, Subscription
from edge_kit.telemetry.presence import Presence
from edge_kit.wire import Topics

TOPICS = Topics("cam")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


class One:
    """A device's presence and its link."""

    def __init__(self, broker: MemoryBroker, clock: Clock) -> None:
        self.clock = clock
        self.presence = Presence(TOPICS, {"model": "m"}, clock=clock)
        self.link = MemoryLink(broker, [self.presence.subscription])
        self.error = None

    def connect(self) -> None:
        self.link.start()
        self.settle()

    def settle(self) -> None:
        while not self.link.events.empty():
            error = self.presence.handle(self.link.events.get(), self.link)
            self.error = self.error or error


def retained(broker: MemoryBroker) -> dict:
    return json.loads(broker.retained[TOPICS.status].payload)


def vanish(broker: MemoryBroker, one: One) -> None:
    """Lose the connection; the broker publishes the will."""
    one.link.drop()
    will = one.presence.will
    broker.retained[will.topic] = Delivery(will.topic, will.payload, 1, False, None, None, 0, 0)


def test_device_announces_itself_and_says_goodbye(clock):
    broker = MemoryBroker()
    one = One(broker, clock)
    one.connect()
    assert retained(broker) == {
        "model": "m", "state": "online", "instance": one.presence.instance,
    }  # fmt: skip
    one.presence.leave(one.link)
    assert retained(broker)["state"] == "offline" and retained(broker)["why"] == "stopped"
    assert json.loads(one.presence.will.payload)["why"] == "vanished"


def test_restart_after_a_crash_is_not_a_conflict(clock):
    broker = MemoryBroker()
    dead = One(broker, clock)
    dead.connect()
    for ghost in ("still online", "will published"):
        if ghost == "will published":
            vanish(broker, dead)
        one = One(broker, clock)
        one.connect()
        assert one.error is None and retained(broker)["instance"] == one.presence.instance


def test_reconnection_announces_again_without_a_conflict(clock):
    broker = MemoryBroker()
    one = One(broker, clock)
    one.connect()
    vanish(broker, one)
    assert retained(broker)["state"] == "offline"
    one.connect()
    assert one.error is None and retained(broker)["state"] == "online"


def test_broker_that_forgot_everything_gets_a_new_announcement_after_a_while(clock):
    broker = MemoryBroker()
    one = One(broker, clock)
    one.connect()
    one.link.drop()
    broker.retained.clear()
    one.connect()
    one.presence.tick(one.link, dict)
    assert not broker.retained
    clock.now += 3
    one.presence.tick(one.link, dict)
    assert retained(broker)["state"] == "online"


def test_older_of_two_devices_with_one_id_gets_an_error(clock):
    broker = MemoryBroker()
    old, new = One(broker, clock), One(broker, clock)
    old.connect()
    vanish(broker, old)  # the broker closes it when the new one takes its session
    new.connect()
    vanish(broker, new)  # and the other way round when the old one reconnects
    old.connect()
    assert old.error is not None and "--device-id" in str(old.error)
    old.link.stop()
    new.connect()
    assert new.error is None and retained(broker)["instance"] == new.presence.instance


def test_counters_are_published_at_most_every_ten_seconds(clock):
    broker = MemoryBroker()
    watcher = MemoryLink(broker, [Subscription(TOPICS.state)])
    watcher.start()
    watcher.events.get()
    one = One(broker, clock)
    one.connect()
    for _ in range(100):
        one.presence.tick(one.link, lambda: {"counters": {"frames": 3}})
        clock.now += 0.3
    assert watcher.events.qsize() == 3
    event = watcher.events.get()
    assert isinstance(event, Delivery) and event.qos == 0
    assert json.loads(event.payload)["counters"] == {"frames": 3}


def test_status_in_an_unknown_form_is_ignored(clock):
    broker = MemoryBroker()
    one = One(broker, clock)
    one.connect()
    one.link.drop()
    broker.retained[TOPICS.status] = Delivery(TOPICS.status, b"[]", 1, False, None, None, 0, 0)
    one.connect()
    assert one.error is None and retained(broker)["state"] == "online"
