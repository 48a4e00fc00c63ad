"""What one run of a device counts. The JSON names are documented in ``docs/results.md``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["JSON_NAMES", "Backlog", "DeliveryCounters", "DeviceCounters", "to_json"]


@dataclass
class DeviceCounters:
    """Of the loop that classifies."""

    frames: int = 0  # classified
    device: int = 0  # answered by the device for good
    standing: int = 0  # low-confidence answers that are kept because no broker is configured
    dropped: int = 0  # frames that a live source missed
    skipped: int = 0  # files that could not be read


@dataclass
class DeliveryCounters:
    """Of the delivery to the cloud; samples, where nothing else is said."""

    offloaded: int = 0  # stored to be sent
    answered: int = 0  # by a worker; each sample once
    refused: int = 0  # by a worker or the broker
    evicted: int = 0  # had to give way in a full spool
    expired: int = 0  # grew too old
    duplicates: int = 0  # further results of samples that had their outcome
    sent: int = 0  # messages that were handed to the broker for the first time
    resent: int = 0  # messages that were handed to it again
    bytes: int = 0  # size of both
    standing: int = 0  # low-confidence answers that are kept because no better one will come
    unspooled: int = 0  # could not be stored
    malformed: int = 0  # results that break the wire format
    # Results that belong to no sample of this spool.
    unknown_sample: int = field(default=0, metadata={"key": "strangers"})
    publish_refused: int = 0  # messages whose PUBACK carried a reason code of failure
    subscribe_refused: int = 0  # subscriptions that the broker refused


@dataclass(frozen=True)
class Backlog:
    """What is left of a run."""

    pending: int = 0  # samples that wait in the spool
    lost: int = 0  # samples that have neither an outcome nor a place in the spool: 0


JSON_NAMES = {f.name: str(f.metadata.get("key", f.name)) for f in fields(DeliveryCounters)}


def to_json(*counters: DataclassInstance) -> dict[str, int]:
    """Return all counters by their documented names; those of one name are added up."""
    total: dict[str, int] = {}
    for one in counters:
        for each in fields(one):
            name = each.metadata.get("key", each.name)
            total[name] = total.get(name, 0) + getattr(one, each.name)
    return total
