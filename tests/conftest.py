"""Fixtures that every test may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from edge_kit.bundle import Bundle
from tests.mosquitto import Mosquitto, make_certificates
from tests.tiny import make_bundle

# No test asserts times: a busy machine must not fail a property.
settings.register_profile("edge-kit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edge-kit")


@pytest.fixture
def make_mosquitto(tmp_path: Path) -> Iterator[Callable[..., Mosquitto]]:
    """Start brokers with the options of `Mosquitto`; all end with the test."""
    brokers: list[Mosquitto] = []

    def make(**options: Any) -> Mosquitto:
        broker = Mosquitto(tmp_path / f"mosquitto-{len(brokers)}", **options)
        brokers.append(broker)
        return broker.start()

    yield make
    for broker in brokers:
        broker.kill()


@pytest.fixture
def mosquitto(make_mosquitto: Callable[..., Mosquitto]) -> Mosquitto:
    """A running broker without persistence, users or TLS."""
    return make_mosquitto()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of `make_certificates`."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The bundle of `tests.tiny` at T = 0.5; do not change its files."""
    return make_bundle(tmp_path_factory.mktemp("tiny") / "bundle")
