"""Fixtures that every test may use."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from edge_kit.bundle import Bundle
from tests.support.device import Edge, Worker, write_photos
from tests.support.mosquitto import Mosquitto, make_certificates
from tests.support.tiny import make_bundle

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
    """The bundle of `tests.support.tiny` at T = 0.5; do not change its files."""
    return make_bundle(tmp_path_factory.mktemp("tiny") / "bundle")


@pytest.fixture(scope="session")
def photo_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos of `tests.support.device`; do not change them."""
    return write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="session")
def probe_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's cache, so that only the first process tries the engines."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def make_worker() -> Iterator[Callable[[Mosquitto], Worker]]:
    """Start workers that answer everything; all end with the test."""
    workers: list[Worker] = []

    def make(broker: Mosquitto) -> Worker:
        workers.append(Worker(broker))
        return workers[-1]

    yield make
    for worker in workers:
        worker.stop()


@pytest.fixture
def worker(mosquitto: Mosquitto, make_worker: Callable[[Mosquitto], Worker]) -> Worker:
    """A worker at the broker `mosquitto`."""
    return make_worker(mosquitto)


@pytest.fixture
def edge(
    tmp_path: Path, photo_folder: Path, tiny_bundle: Bundle, probe_cache: Path
) -> Iterator[Edge]:
    """Start ``edge-kit run`` on the tiny bundle and the photos."""
    children: list[subprocess.Popen] = []
    env = {k: v for k, v in os.environ.items() if not k.startswith("EDGE_KIT_")}
    env |= {"XDG_CACHE_HOME": str(probe_cache), "PYTHONUNBUFFERED": "1"}

    def start(
        *args: str,
        source: Path = photo_folder,
        bundle: Path = tiny_bundle.root,
        more_env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen:
        command = [sys.executable, "-m", "edge_kit.cli", "run", str(bundle)]
        command += ["--source", str(source), "--device-id", "cam", "--engine", "onnx"]
        command += ["--spool", str(tmp_path / "spool.db"), *args]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
        child = subprocess.Popen(command, env=env | (more_env or {}), **options)
        children.append(child)
        return child

    yield start
    for child in children:
        if child.poll() is None:
            child.kill()
        child.communicate()
