"""Make the link of a device."""

from __future__ import annotations

from edge_kit.link.address import BrokerAddress
from edge_kit.link.connection import Will
from edge_kit.link.link import Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import Topics

__all__ = ["open_device_link"]

SESSION_EXPIRY_S = 7 * 24 * 3600


def open_device_link(
    address: BrokerAddress, topics: Topics, status: Subscription, will: Will
) -> MqttLink:
    """Return a link, not started, whose session outlives the device.

    Results that come while the device is away are kept by the broker for a week.

    Args:
        address: The broker.
        topics: Of the device; its results are subscribed to.
        status: One more subscription, to the device's own status.
        will: What the broker says when the device vanishes.
    """
    return MqttLink(
        address,
        client_id=f"edgekit-{topics.device}",
        subscriptions=[Subscription(topics.results, qos=1), status],
        will=will,
        clean_start=False,
        session_expiry=SESSION_EXPIRY_S,
    )
