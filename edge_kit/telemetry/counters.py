"""What one run of a device counts. The JSON names are documented in ``docs/results.md``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["JSON_NAMES", "Backlog", "DeliveryCounters", "DeviceCounters", "to_json"]


@dataclass
class DeviceCounters:
    """Of the loop that classifies.

    Attributes:
        frames: Frames that were classified.
        device: Answered by the device for good.
        standing: Low-confidence answers that are kept because no broker is configured.
        dropped: Frames that a live source missed.
        skipped: Files that could not be read.
    """

    frames: int = 0
    device: int = 0
    standing: int = 0
    dropped: int = 0
    skipped: int = 0


@dataclass
class DeliveryCounters:
    """Of the delivery to the cloud.

    Attributes:
        offloaded: Samples that were stored to be sent.
        answered: By a worker; each sample once.
        refused: Samples that a worker or the broker refused.
        evicted: Samples that had to give way in a full spool.
        expired: Samples that grew too old.
        duplicates: Further results of samples that had their outcome.
        sent: Messages that were handed to the broker for the first time.
        resent: Messages that were handed to it again.
        bytes: Size of both.
        standing: Low-confidence answers that are kept because no better one will come.
        unspooled: Samples that could not be stored.
        malformed: Results that break the wire format.
        unknown_sample: Results that belong to no sample of this spool.
        publish_refused: Publishes whose acknowledgement carried a reason code of failure.
        subscribe_refused: Subscriptions that the broker refused.
    """

    offloaded: int = 0
    answered: int = 0
    refused: int = 0
    evicted: int = 0
    expired: int = 0
    duplicates: int = 0
    sent: int = 0
    resent: int = 0
    bytes: int = 0
    standing: int = 0
    unspooled: int = 0
    malformed: int = 0
    unknown_sample: int = field(default=0, metadata={"key": "strangers"})
    publish_refused: int = 0
    subscribe_refused: int = 0


@dataclass(frozen=True)
class Backlog:
    """What is left of a run.

    Attributes:
        pending: Samples that wait in the spool.
        lost: Samples that have neither an outcome nor a place in the spool: 0.
    """

    pending: int = 0
    lost: int = 0


JSON_NAMES = {f.name: str(f.metadata.get("key", f.name)) for f in fields(DeliveryCounters)}


def to_json(*counters: DataclassInstance) -> dict[str, int]:
    """Return all counters by their documented names; those of one name are added up."""
    total: dict[str, int] = {}
    for one in counters:
        for each in fields(one):
            name = each.metadata.get("key", each.name)
            total[name] = total.get(name, 0) + getattr(one, each.name)
    return total
