"""`compose.yaml` on a real engine: devices are answered, and restarts keep their sessions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from edge_kit.link import Connected, Delivery, Disconnected, Subscription
from edge_kit.link.mqtt import BrokerAddress, MqttLink
from edge_kit.wire import Topics
from tests.support.dockerd import Dockerd, compose_command
from tests.support.messages import TIMEOUT
from tests.support.mosquitto import free_port
from tests.system.conftest import ROOT, skip_or_fail

pytestmark = [pytest.mark.container, pytest.mark.broker, pytest.mark.slow]

ASSETS = ROOT / "edge_kit/demo/assets"
PASSWORDS = {"worker": "w-secret", "cam-1": "c-secret", "cam-2": "d-secret"}
# The users that the two images run as.
MOSQUITTO_UID, WORKER_UID = 1883, 10001


class Project:
    """A folder with the shipped `compose.yaml`, set up as docs/cloud.md says.

    Args:
        docker: The engine.
        root: Where to set it up.
        command: How Docker Compose is called.
    """

    def __init__(self, docker: Dockerd, root: Path, command: list[str]) -> None:
        self.root, self.port = root, free_port()
        self._docker, self._command = docker, command
        shutil.copy(ROOT / "compose.yaml", root)
        shutil.copytree(ROOT / "deploy", root / "deploy")
        shutil.copy(ASSETS / "clothing.ekb", root / "shop.ekb")
        (root / "shop.ekb").chmod(0o644)
        (root / ".env").write_text(f"BUNDLE=./shop.ekb\nMQTT_PORT={self.port}\n")
        passwords = root / "deploy/mosquitto/passwords"
        passwords.touch(0o600)
        for user, password in PASSWORDS.items():
            call = ["mosquitto_passwd", "-b", str(passwords), user, password]
            subprocess.run(call, check=True, capture_output=True)
        os.chown(passwords, MOSQUITTO_UID, -1)
        secret = root / "deploy/mosquitto/worker-password"
        secret.write_text(PASSWORDS["worker"] + "\n")
        os.chown(secret, WORKER_UID, -1)
        secret.chmod(0o400)

    def compose(self, *args: str) -> str:
        """Run one command of Docker Compose and return what it printed."""
        return self._docker.call([*self._command, *args], cwd=self.root).stdout

    def up(self, workers: int = 1) -> None:
        self.compose("up", "--detach", "--no-build", "--scale", f"worker={workers}")

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--quiet", service).split()

    def wait_healthy(self) -> None:
        def states() -> set[str]:
            found = [self._docker.inspect(name)["State"] for name in self.containers("worker")]
            return {state["Health"]["Status"] for state in found}

        self._wait(lambda: states() == {"healthy"})

    def _wait(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not ready():
            assert time.monotonic() < deadline, self.compose("logs", "--no-color")
            time.sleep(0.2)

    def run_device(self, *args: str) -> tuple[list[dict], dict]:
        """Play the shipped photos as cam-1; return its results and its summary."""
        command = [sys.executable, "-m", "edge_kit.cli", "run", str(self.root / "shop.ekb")]
        command += ["--source", str(ASSETS / "photos"), "--device-id", "cam-1", "--json"]
        command += ["--broker", f"mqtt://cam-1@127.0.0.1:{self.port}", "--engine", "onnx"]
        command += ["--spool", str(self.root / "spool.db"), "--threads", "1", *args]
        env = os.environ | {"EDGE_KIT_PASSWORD": PASSWORDS["cam-1"]}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        results = [line for line in lines if "sample" in line]
        return results, next(line["summary"] for line in lines if "summary" in line)

    def link(self, user: str, *subscriptions: Subscription) -> MqttLink:
        """Return a client whose session the broker keeps for an hour."""
        url = f"mqtt://{user}@127.0.0.1:{self.port}"
        address = BrokerAddress.parse(url, password=PASSWORDS[user])
        return MqttLink(
            address, f"{user}-link", subscriptions, clean_start=False, session_expiry=3600
        )


@pytest.fixture
def project(docker: Dockerd, tmp_path: Path) -> Iterator[Project]:
    command = compose_command()
    skip_or_fail("" if command else "docker compose is missing (apt-get install docker-compose)")
    assert command is not None
    made = Project(docker, tmp_path, command)
    try:
        yield made
    finally:
        made.compose("down", "--volumes")


def connect(link: MqttLink) -> Connected:
    link.start()
    while isinstance(event := link.events.get(timeout=TIMEOUT), Disconnected):
        assert not event.fatal, event.error
    assert isinstance(event, Connected)
    return event


def test_compose_serves_a_device_across_restarts_and_leaves_nothing_behind(docker, project):
    before = leftovers(docker)
    project.up(workers=2)
    project.wait_healthy()
    assert len(project.containers("worker")) == 2
    results, summary = project.run_device("--threshold", "-1", "--limit", "20", "--linger", "60")
    assert summary["run"]["answered"] == summary["run"]["offloaded"] == 20
    assert sum(r["tier"] == "cloud" and r["status"] == "final" for r in results) == 20

    # At the shipped threshold, with workers that were just told to restart.
    project.compose("restart", "worker")
    _, summary = project.run_device("--limit", "20", "--linger", "60")
    assert 0 < summary["run"]["answered"] == summary["run"]["offloaded"] < 20

    # What was published for an absent device outlives the broker's container.
    results_topic = Topics("cam-2").results
    device = project.link("cam-2", Subscription(results_topic))
    assert not connect(device).session_present
    device.stop()
    worker = project.link("worker")
    connect(worker)
    worker.publish(results_topic, b"while you were away")
    worker.stop()
    project.compose("down")
    (kept,) = leftovers(docker) - before
    assert kept.endswith("mosquitto-data")
    project.up()
    device = project.link("cam-2", Subscription(results_topic))
    assert connect(device).session_present
    event = device.events.get(timeout=TIMEOUT)
    device.stop()
    assert isinstance(event, Delivery)
    assert event.payload == b"while you were away"

    project.compose("down", "--volumes")
    assert leftovers(docker) == before


def leftovers(docker: Dockerd) -> set[str]:
    """Containers, networks and named volumes of the engine."""
    listings = (("ps", "-aq"), ("network", "ls", "-q"), ("volume", "ls", "-q"))
    return {name for command in listings for name in docker.run(*command).stdout.split()}
