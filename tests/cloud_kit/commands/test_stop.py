from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from cloud_kit.worker.models import open_models
from cloud_kit.worker.service import serve
from cloud_kit.worker.settings import ServiceSettings
from edge_kit.host.signals import BURST_S, StopRequest
from edge_kit.link import Connected
from edge_kit.link.mqtt import BrokerAddress, MqttLink
from edge_kit.wire import Topics
from tests.support.cloud_command import process
from tests.support.messages import TIMEOUT, message, sample_id
from tests.support.mosquitto import free_port


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_worker_without_a_broker_stops_on_a_signal(tiny_bundle, number):
    url = f"mqtt://127.0.0.1:{free_port()}"
    args = ["--bundle", str(tiny_bundle.root), "--broker", url, "--report-s", "0.1", "--json"]
    with process("worker", *args) as worker:
        worker.wait_for("counters")
        assert worker.end(number) == 0


@pytest.mark.parametrize("pause_s", [0.0, 0.002])
def test_worker_ends_cleanly_on_a_burst_of_signals(tiny_bundle, pause_s):
    url = f"mqtt://127.0.0.1:{free_port()}"
    args = ["--bundle", str(tiny_bundle.root), "--broker", url, "--report-s", "0.1", "--json"]
    with process("worker", *args) as worker:
        worker.wait_for("counters")
        burst(worker.process, pause_s)
        assert worker.end() == 0
        assert worker.wait_for("stopped")["clean"]


@pytest.mark.broker
@pytest.mark.parametrize("pause_s", [0.0, 0.002])
def test_broker_command_ends_its_child_on_a_burst_of_signals(pause_s):
    with process("broker", "--port", "0", "--json") as broker:
        pid = broker.wait_for("ready")["pid"]
        burst(broker.process, pause_s)
        assert broker.end() == 0
    assert not alive(pid)


def burst(process: subprocess.Popen[str], pause_s: float) -> None:
    for _ in range(50):
        process.send_signal(signal.SIGTERM)
        time.sleep(pause_s)


def test_stop_while_bundles_load_ends_the_worker(monkeypatch, tiny_bundle):
    stop = StopRequest()

    def load(bundles, threads):
        stop.ask()
        return open_models(bundles, threads)

    monkeypatch.setattr("cloud_kit.worker.service.open_models", load)
    address = BrokerAddress.parse(f"mqtt://127.0.0.1:{free_port()}")
    events: list[dict] = []
    assert serve(ServiceSettings((tiny_bundle.root,), address), events.append, stop)
    assert [e["event"] for e in events] == ["starting", "stopped"]


@pytest.mark.broker
def test_second_signal_ends_a_draining_worker(mosquitto, tiny_bundle):
    args = ["--bundle", str(tiny_bundle.root), "--broker", mosquitto.url, "--report-s", "0.1"]
    args += ["--drain-s", "600", "--batch", "64", "--wait-ms", "60000", "--json"]
    link = MqttLink(mosquitto.address, "cam-1")
    topics = Topics("cam-1")
    with process("worker", *args) as worker:
        worker.wait_for("connected")
        link.start()
        try:
            assert isinstance(link.events.get(timeout=TIMEOUT), Connected)
            link.publish(
                topics.features,
                message(1, model=tiny_bundle.manifest.wire_id),
                correlation=sample_id(1),
                response_topic=topics.results,
            )
            while worker.wait_for("counters")["received"] < 1:
                pass
            os.kill(mosquitto.pid, signal.SIGSTOP)  # so that the answer is never acknowledged
            worker.process.send_signal(signal.SIGTERM)
            time.sleep(BURST_S + 0.2)
            while worker.wait_for("counters")["inferred"] < 1:
                pass
            assert worker.process.poll() is None
            assert worker.end() == -signal.SIGTERM
        finally:
            os.kill(mosquitto.pid, signal.SIGCONT)
            link.stop()


@pytest.mark.broker
def test_broker_command_prints_its_address_and_ends_its_child():
    with process("broker", "--port", "0", "--json") as broker:
        ready = broker.wait_for("ready")
        assert ready["url"] == f"mqtt://127.0.0.1:{ready['port']}"
        assert broker.end() == 0
    with pytest.raises(ProcessLookupError):
        os.kill(ready["pid"], 0)


@pytest.mark.broker
def test_killed_broker_command_leaves_no_broker():
    with process("broker", "--port", "0", "--json") as broker:
        pid = broker.wait_for("ready")["pid"]
        broker.kill()
        for _ in range(int(TIMEOUT / 0.05)):
            if not alive(pid):
                return
            threading.Event().wait(0.05)
    raise AssertionError("the broker outlived its command")


def alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and waits for its parent does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
