"""The broker, and the certificate that is shown to it."""

from __future__ import annotations

import queue
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_kit.doctor.check import Check
from edge_kit.errors import LinkError
from edge_kit.link.address import BrokerAddress
from edge_kit.link.link import Connected, Disconnected, Event, Link, Published, Subscription
from edge_kit.link.reasons import publish_error
from edge_kit.telemetry.certificate import read_certificate
from edge_kit.wire import Topics

__all__ = ["check_broker", "check_certificate"]

_BROKER_TIMEOUT_S = 15.0


def check_broker(
    broker: BrokerAddress,
    make_link: Callable[[BrokerAddress, str, Sequence[Subscription]], Link],
    topics: Topics,
    timeout_s: float = _BROKER_TIMEOUT_S,
) -> Check:
    """Connect under a name of its own, do what the device will do there, and leave again.

    The one message that it publishes is empty; a worker counts it as malformed.
    """
    client_id = f"edge-kit-doctor-{uuid.uuid4().hex[:8]}"
    link = make_link(broker, client_id, [Subscription(topics.results)])
    start = time.monotonic()
    link.start()
    try:
        event = _next(link, (Connected, Disconnected), timeout_s)
        took = (time.monotonic() - start) * 1e3
        if isinstance(event, Disconnected) and event.error is not None:
            return Check("broker", False, event.error.what, event.error.hint)
        if not isinstance(event, Connected):
            return Check("broker", False, f"{broker.url} does not answer within {timeout_s:.0f} s")
        link.publish(topics.features, b"", expiry_s=1)
        published = _next(link, (Published, Disconnected), timeout_s)
    except LinkError as error:
        return Check("broker", False, error.what, error.hint)
    finally:
        link.stop()
    if not isinstance(published, Published):
        what = f"{broker.url} does not acknowledge a message within {timeout_s:.0f} s"
        return Check("broker", False, what, "look at the broker's log")
    if published.refused is not None:
        refusal = publish_error(topics.features, published.refused)
        return Check("broker", False, refusal.what, refusal.hint)
    limit = f", messages up to {event.max_packet} bytes" if event.max_packet else ""
    return Check("broker", True, f"{broker.url} accepts us after {took:.0f} ms{limit}")


def _next(link: Link, kinds: tuple[type[Event], ...], timeout_s: float) -> Event | None:
    """Return the next event of these kinds; None when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            event = link.events.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if isinstance(event, kinds):
            return event


def check_certificate(path: Path, now: float | None = None) -> Check:
    """Say how long the client certificate is good, and whether its renewal works."""
    found = read_certificate(path, now)
    if found is None:
        return Check("certificate", False, f"{path} cannot be read as a PEM certificate")
    if found.problem:
        hint = "renew it; where edge-kit-enroll renews it: journalctl -u edge-kit-enroll"
        return Check("certificate", False if found.days_left < 0 else None, found.problem, hint)
    renewed = ""
    if found.renewed_at is not None:
        renewed = time.strftime(
            ", renewal worked %Y-%m-%d %H:%M UTC", time.gmtime(found.renewed_at)
        )
    return Check("certificate", True, f"{path} is good for {found.days_left:.0f} days{renewed}")
