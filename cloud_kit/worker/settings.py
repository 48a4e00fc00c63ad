"""What a worker is told from outside: flags, the environment, files."""

from __future__ import annotations

import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloud_kit.worker.worker import WorkerSettings
from edge_kit.errors import ConfigError
from edge_kit.link.address import BrokerAddress, read_password
from edge_kit.masking import MASK

__all__ = ["PASSWORD", "ServiceSettings", "find_password"]

PASSWORD = "CLOUD_KIT_PASSWORD"


@dataclass(frozen=True)
class ServiceSettings:
    """One worker process.

    Attributes:
        bundles: At least one.
        broker: Where messages come from.
        pool: Workers of one pool share the messages.
        name: For people and logs; the client id adds a random end, since pools are elastic.
        threads: Those that compute, at least as many as lanes.
        work: Batches, memory and the clean stop.
        health_file: Where the heartbeat goes; None writes none.
        report_s: Seconds between reports of the counters.
    """

    bundles: tuple[Path, ...]
    broker: BrokerAddress
    pool: str = "workers"
    name: str = field(default_factory=socket.gethostname)
    threads: int = 1
    work: WorkerSettings = field(default_factory=WorkerSettings)
    health_file: Path | None = None
    report_s: float = 10.0

    def __post_init__(self) -> None:
        if not self.bundles:
            raise ConfigError(
                "no bundle is given", "name one with --bundle, or set CLOUD_KIT_BUNDLE"
            )
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.pool):
            raise ConfigError(
                f"pool {self.pool!r} must be 1 to 64 of the characters A-Z a-z 0-9 . _ -"
            )

    @property
    def pool_threads(self) -> int:
        """Threads of each engine, its caller included, so that all lanes have `threads` in all."""
        return self.threads - self.work.lanes + 1

    @property
    def receive_maximum(self) -> int:
        """Unacknowledged messages that the broker may hand over: a batch a lane, and one more."""
        return min((self.work.lanes + 1) * self.work.batch, 65535)

    def new_client_id(self) -> str:
        """Return an id that no other worker has."""
        safe = re.sub(r"[^A-Za-z0-9._-]", "-", self.name)[:40]
        return f"{safe}-{secrets.token_hex(4)}"

    def to_json(self) -> dict[str, Any]:
        """Return what may be shown: everything but the password."""
        return {
            "bundles": [str(b) for b in self.bundles],
            "broker": self.broker.url,
            "password": MASK if self.broker.password else None,
            "ca": None if self.broker.ca is None else str(self.broker.ca),
            "cert": None if self.broker.cert is None else str(self.broker.cert),
            "pool": self.pool,
            "name": self.name,
            "threads": self.threads,
            "batch": self.work.batch,
            "wait_ms": self.work.wait_s * 1e3,
            "recent": self.work.recent,
            "drain_s": self.work.drain_s,
            "health_file": None if self.health_file is None else str(self.health_file),
        }


def find_password(file: Path | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the broker's password from a file or the environment; empty for none.

    Raises:
        ConfigError: The file cannot be read or is empty.
    """
    if file is None:
        return environment.get(PASSWORD, "")
    password = read_password(file)
    if not password:
        raise ConfigError(f"the password file {file} is empty")
    return password
