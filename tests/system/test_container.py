"""The worker's image, built and run for real: it answers a device and stops cleanly."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_kit.bundle import Bundle, pack
from edge_kit.link import Connected, Delivery, Disconnected, Published, Subscription
from edge_kit.link.mqtt import BrokerAddress, MqttLink
from edge_kit.wire import Refusal, ResultMessage, Topics
from tests.support.dockerd import WORKER_IMAGE, Dockerd
from tests.support.messages import TIMEOUT, message, sample_id
from tests.support.mosquitto import PROGRAM, free_port
from tests.support.tiny import make_bundle

pytestmark = [pytest.mark.container, pytest.mark.broker, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
USERS = {"worker": "w-secret", "operator": "o-secret", "cam-1": "c-secret", "cam-2": "d-secret"}
RUN = [
    "--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL",
    "--security-opt", "no-new-privileges", "--memory", "512m", "--health-interval", "1s",
]  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = tmp_path_factory.mktemp("served")
    made = make_bundle(root / "bundle")
    for path in (root, *root.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return made


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """mosquitto with the configuration and access list that the repository ships."""
    root = tmp_path_factory.mktemp("broker")
    port = free_port()
    shipped = ROOT / "deploy/mosquitto"
    config = (shipped / "mosquitto.conf").read_text()
    config = config.replace("listener 1883\n", f"listener {port} 127.0.0.1\n")
    config = config.replace("/mosquitto/config", str(root)).replace("/mosquitto/data", str(root))
    (root / "mosquitto.conf").write_text(config + "\nuser root\n")
    shutil.copy(shipped / "acl", root / "acl")
    (root / "passwords").touch()
    for user, password in USERS.items():
        command = ["mosquitto_passwd", "-b", str(root / "passwords"), user, password]
        subprocess.run(command, check=True, capture_output=True)
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            [PROGRAM, "-c", str(root / "mosquitto.conf")], stdout=log, stderr=log
        )
    try:
        yield port
    finally:
        assert process.poll() is None, (root / "log").read_text()
        process.terminate()
        process.wait(30)


@contextmanager
def device(port: int, name="cam-1", *, user="", subscribe=None) -> Iterator[MqttLink]:
    user = user or name
    address = BrokerAddress.parse(f"mqtt://{user}@127.0.0.1:{port}", password=USERS[user])
    link = MqttLink(address, name, [Subscription(subscribe or Topics(name).results)])
    link.start()
    try:
        yield link
    finally:
        link.stop()


@contextmanager
def running(docker: Dockerd, served: Path, port: int, tmp_path: Path) -> Iterator[str]:
    secret = tmp_path / "worker-password"
    secret.write_text(USERS["worker"] + "\n")
    secret.chmod(0o644)
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    name = f"worker-{free_port()}"
    docker.run(
        "run", "-d", "--name", name, *RUN,
        "-v", f"{served}:/bundle:ro",
        "-v", f"{secret}:/run/secrets/worker-password:ro",
        "-e", f"CLOUD_KIT_BROKER=mqtt://worker@127.0.0.1:{port}",
        "-e", "CLOUD_KIT_PASSWORD_FILE=/run/secrets/worker-password",
        "-e", "CLOUD_KIT_THREADS=1",
        WORKER_IMAGE,
    )  # fmt: skip
    try:
        wait(lambda: '"connected"' in docker.run("logs", name).stdout, docker, name)
        yield name
    finally:
        docker.run("rm", "-f", name, check=False)


def wait(ready, docker: Dockerd, name: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not ready():
        logs = docker.run("logs", name, check=False)
        assert time.monotonic() < deadline, logs.stdout + logs.stderr
        time.sleep(0.1)


def send(link: MqttLink, bundle: Bundle, index: int, name="cam-1") -> None:
    topics = Topics(name)
    payload = message(index, model=bundle.manifest.wire_id)
    link.publish(
        topics.features, payload, correlation=sample_id(index), response_topic=topics.results
    )


def results(link: MqttLink, count: int) -> dict[bytes, ResultMessage]:
    found: dict[bytes, ResultMessage] = {}
    while len(found) < count:
        event = link.events.get(timeout=TIMEOUT)
        assert not isinstance(event, Disconnected), event
        if isinstance(event, Delivery):
            link.ack(event)
            result = ResultMessage.decode(event.payload)
            found[result.sample] = result
    return found


def test_image_holds_only_what_a_worker_needs(docker):
    probe = (
        "import importlib.util as u, sys;"
        "print([n for n in ('torch','PIL','cv2','pip','setuptools','exporters','boards')"
        " if u.find_spec(n)])"
    )
    out = docker.run("run", "--rm", *RUN, "--entrypoint", "python3", WORKER_IMAGE, "-c", probe)
    assert out.stdout.strip() == "[]"
    config = docker.inspect(WORKER_IMAGE)["Config"]
    assert config["User"].startswith("10001")
    assert config["Healthcheck"]["Test"] == ["CMD", "cloud-kit", "health"]
    history = docker.run("history", "--no-trunc", WORKER_IMAGE).stdout
    assert "secret" not in history.replace("type=secret", "").replace("two secrets", "")


def test_worker_answers_a_device_and_drains(docker, bundle, port, tmp_path):
    with running(docker, bundle.root, port, tmp_path) as name, device(port) as link:
        assert isinstance(link.events.get(timeout=TIMEOUT), Connected)
        send(link, bundle, 1)
        assert results(link, 1)[sample_id(1)].label == 1

        state = docker.inspect(name)
        assert state["HostConfig"]["ReadonlyRootfs"]
        assert docker.run("exec", name, "id", "-u").stdout.strip() == "10001"
        write = docker.run("exec", name, "touch", "/opt/edge-kit/x", check=False)
        assert write.returncode != 0
        wait(lambda: docker.inspect(name)["State"]["Health"]["Status"] == "healthy", docker, name)

        for index in range(100, 300):
            send(link, bundle, index)
        results(link, 1)  # it is in the middle of them
        docker.run("stop", "--time", "30", name)
        ended = docker.inspect(name)["State"]
        assert ended["ExitCode"] == 0
        assert not ended["OOMKilled"]
        assert '"clean": true' in docker.run("logs", name).stdout


def test_resent_samples_of_a_stopped_worker_are_answered_by_another(docker, bundle, port, tmp_path):
    """The device resends what a stopped worker never got to; nothing is lost."""
    with device(port) as link:
        assert isinstance(link.events.get(timeout=TIMEOUT), Connected)
        with running(docker, bundle.root, port, tmp_path) as name:
            for index in range(50):
                send(link, bundle, index)
            first = results(link, 1)
            docker.run("stop", "--time", "30", name)
        with running(docker, bundle.root, port, tmp_path):
            for index in range(50):
                if sample_id(index) not in first:
                    send(link, bundle, index)
            answered = first | results(link, 49)
    assert set(answered) >= {sample_id(i) for i in range(50)}
    assert all(r.refusal is Refusal.NONE for r in answered.values())


def test_packed_bundle_is_served_from_a_read_only_root(docker, bundle, port, tmp_path):
    packed = tmp_path / "shop.ekb"
    pack(bundle.root, packed)
    packed.chmod(0o644)
    with running(docker, packed, port, tmp_path), device(port) as link:
        assert isinstance(link.events.get(timeout=TIMEOUT), Connected)
        send(link, bundle, 1)
        assert results(link, 1)[sample_id(1)].label == 1


def test_worker_with_a_wrong_password_ends_with_the_reason(docker, bundle, port):
    done = docker.run(
        "run", "--rm", *RUN, "-v", f"{bundle.root}:/bundle:ro",
        "-e", f"CLOUD_KIT_BROKER=mqtt://worker@127.0.0.1:{port}",
        "-e", "CLOUD_KIT_PASSWORD=wrong", WORKER_IMAGE, check=False,
    )  # fmt: skip
    assert done.returncode == 6
    assert "cloud-kit: error:" in done.stderr
    assert "Traceback" not in done.stderr


def test_health_check_without_a_worker_fails(docker):
    done = docker.run(
        "run", "--rm", *RUN, "--entrypoint", "cloud-kit", WORKER_IMAGE, "health", check=False
    )
    assert done.returncode == 1
    assert "not running" in done.stdout


def test_device_cannot_publish_as_another(docker, port):
    with device(port, "cam-1") as link:
        assert isinstance(link.events.get(timeout=TIMEOUT), Connected)
        token = link.publish(Topics("cam-2").features, b"?")
        event = link.events.get(timeout=TIMEOUT)
        assert isinstance(event, Published)
        assert event.token == token
        assert event.refused
        token = link.publish(Topics("cam-1").features, b"?")
        event = link.events.get(timeout=TIMEOUT)
        assert isinstance(event, Published)
        assert event.refused is None


def test_device_reads_only_its_own_results(docker, port):
    both = "edgekit/1/+/results"
    with device(port, "cam-1", subscribe=both) as link, device(port, "worker") as worker:
        assert isinstance(link.events.get(timeout=TIMEOUT), Connected)
        assert isinstance(worker.events.get(timeout=TIMEOUT), Connected)
        worker.publish(Topics("cam-2").results, b"theirs")
        worker.publish(Topics("cam-1").results, b"mine")
        event = link.events.get(timeout=TIMEOUT)
    assert isinstance(event, Delivery)
    assert event.payload == b"mine"


def test_client_without_a_password_is_refused(docker, port):
    link = MqttLink(BrokerAddress.parse(f"mqtt://127.0.0.1:{port}"), "nobody")
    link.start()
    try:
        event = link.events.get(timeout=TIMEOUT)
    finally:
        link.stop()
    assert isinstance(event, Disconnected)
    assert event.fatal
