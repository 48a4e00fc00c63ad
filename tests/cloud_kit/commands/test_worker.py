from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from cloud_kit.commands.health import health
from cloud_kit.commands.worker import worker
from cloud_kit.worker.counters import Counters
from cloud_kit.worker.service import state_topic
from cloud_kit.worker.settings import PASSWORD
from edge_kit.link import Connected, Delivery, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import Refusal, ResultMessage, Topics
from tests.support.cloud_command import process, run
from tests.support.messages import TIMEOUT, message, sample_id
from tests.support.mosquitto import dynamic_security
from tests.support.tiny import make_bundle

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("file", ["Containerfile", "compose.yaml", "docs/cloud.md"])
def test_files_name_only_variables_that_exist(file):
    known = {o.envvar for c in (worker, health) for o in c.params if getattr(o, "envvar", "")}
    named = set(re.findall(r"CLOUD_KIT_[A-Z_]+", (ROOT / file).read_text()))
    assert named
    assert named <= known | {PASSWORD}


def test_documentation_lists_every_option():
    text = (ROOT / "docs/cloud.md").read_text()
    for option in worker.params:
        if option.name not in ("ca", "cert", "key", "name", "verbose"):
            assert f"`{option.envvar}`" in text, option.name
            assert option.opts[0] in text


def test_documentation_lists_every_counter():
    text = (ROOT / "docs/cloud.md").read_text()
    for each in dataclasses.fields(Counters):
        assert each.name.startswith("_") or f"`{each.name}`" in text, each.name


def test_worker_with_an_unwritable_health_file_does_not_start(tiny_bundle, tmp_path):
    args = ["worker", "--bundle", str(tiny_bundle.root), "--health-file", str(tmp_path / "no/beat")]
    done = run(*args)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.broker
def test_worker_whose_health_file_becomes_unwritable_works_on(mosquitto, tiny_bundle, tmp_path):
    place = tmp_path / "health"
    place.mkdir()
    args = ["--bundle", str(tiny_bundle.root), "--broker", mosquitto.url, "--json"]
    args += ["--health-file", str(place / "beat"), "--report-s", "0.2"]
    with process("worker", *args) as worker:
        worker.wait_for("connected")
        (place / "beat").unlink()
        place.rmdir()
        said = worker.process.stderr.readline()
        assert "cannot be written" in said
        assert worker.process.poll() is None
        assert worker.end() == 0


@pytest.mark.broker
def test_worker_answers_reports_and_stops(mosquitto, tiny_bundle, tmp_path):
    other = make_bundle(tmp_path / "other", gain=0.3)
    beat = tmp_path / "beat"
    topics = Topics("cam-1")
    watched = [Subscription(topics.results), Subscription(state_topic("+"))]
    link = MqttLink(mosquitto.address, "cam-1", watched)
    link.start()
    try:
        assert isinstance(link.events.get(timeout=TIMEOUT), Connected)
        with process(
            "worker", "--json", "--broker", mosquitto.url, "--threads", "1",
            CLOUD_KIT_BUNDLE=f"{tiny_bundle.root}:{other.root}",
            CLOUD_KIT_HEALTH_FILE=str(beat), CLOUD_KIT_REPORT_S="0.2", CLOUD_KIT_WAIT_MS="0",
        ) as worker:  # fmt: skip
            starting = worker.wait_for("starting")
            assert len(starting["models"]) == 2
            assert starting["wait_ms"] == 0
            worker.wait_for("connected")
            seen: dict[bytes, ResultMessage] = {}
            states = []
            for index, bundle in enumerate((tiny_bundle, other)):
                link.publish(
                    topics.features,
                    message(index, model=bundle.manifest.wire_id),
                    correlation=sample_id(index),
                    response_topic=topics.results,
                )
            while len(seen) < 2 or not states or states[-1]["answered"] < 2:
                event = link.events.get(timeout=TIMEOUT)
                if isinstance(event, Delivery) and event.topic == topics.results:
                    result = ResultMessage.decode(event.payload)
                    seen[result.sample] = result
                    link.ack(event)
                elif isinstance(event, Delivery):
                    states.append(json.loads(event.payload))
            well = run("health", CLOUD_KIT_HEALTH_FILE=str(beat))
            assert (well.returncode, well.stdout) == (0, "connected\n")
            assert worker.end() == 0
            assert worker.wait_for("stopped")["clean"]
    finally:
        link.stop()
    assert all(r.refusal is Refusal.NONE for r in seen.values())
    assert run("health", "--file", str(beat)).returncode == 1


def test_worker_without_a_bundle_says_how_to_name_one():
    done = run("worker")
    assert done.returncode == 2
    assert done.stderr.startswith("cloud-kit: error: no bundle is given; name one with --bundle")


def test_missing_bundle_is_named_without_a_traceback():
    done = run("worker", "--bundle", "/nowhere")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "/nowhere" in done.stderr


def test_changed_bundle_is_not_served(tmp_path):
    bundle = make_bundle(tmp_path / "bundle")
    with (bundle.root / "cloud/tail.onnx").open("ab") as file:
        file.write(b"\0")
    done = run("worker", "--bundle", str(bundle.root))
    assert done.returncode == 3
    assert "tail.onnx" in done.stderr


@pytest.mark.broker
def test_worker_with_a_wrong_password_ends_with_the_reason(make_mosquitto, tiny_bundle):
    broker = make_mosquitto(users={"worker": "right"})
    url = broker.url.replace("//", "//worker@")
    args = ["worker", "--bundle", str(tiny_bundle.root), "--broker", url]
    done = run(*args, CLOUD_KIT_PASSWORD="wrong")
    assert done.returncode == 6
    assert done.stderr.startswith("cloud-kit: error: ")
    assert "wrong" not in done.stdout + done.stderr.replace("wrong user", "")


@pytest.mark.broker
def test_worker_that_may_not_publish_results_counts_them_and_says_why_once(
    make_mosquitto, tiny_bundle
):
    acl = "topic readwrite edgekit/1/+/features\ntopic write edgekit/1/workers/+/state\n"
    broker = make_mosquitto(acl=acl)
    topics = Topics("cam-1")
    link = MqttLink(broker.address, "cam-1")
    args = ["--bundle", str(tiny_bundle.root), "--broker", broker.url, "--report-s", "0.2"]
    with process("worker", *args, "--json") as worker:
        worker.wait_for("connected")
        link.start()
        try:
            assert isinstance(link.events.get(timeout=TIMEOUT), Connected)
            for index in range(3):
                payload = message(index, model=tiny_bundle.manifest.wire_id)
                answer = {"correlation": sample_id(index), "response_topic": topics.results}
                link.publish(topics.features, payload, **answer)
            while (counters := worker.wait_for("counters"))["rejected"] < 3:
                pass
        finally:
            link.stop()
        assert counters["answered"] == 0
        worker.process.terminate()
        said = worker.process.stderr.read()
        assert worker.process.wait(TIMEOUT) == 0
    assert said.count("the broker refuses results") == 1
    assert "access list" in said and "Not authorized" in said


@pytest.mark.broker
def test_worker_that_may_not_subscribe_ends_with_the_reason(make_mosquitto, tiny_bundle, tmp_path):
    broker = make_mosquitto(extra=dynamic_security(tmp_path, subscribe=False))
    done = run("worker", "--bundle", str(tiny_bundle.root), "--broker", broker.url)
    assert done.returncode == 6
    assert "refuses the subscription to $share/workers/edgekit/1/+/features" in done.stderr
    assert "access list" in done.stderr


@pytest.mark.broker
def test_worker_connects_with_a_client_certificate(make_mosquitto, tiny_bundle, certificates):
    broker = make_mosquitto(tls=certificates, client_certs=True)
    args = ["--bundle", str(tiny_bundle.root), "--broker", broker.url, "--json"]
    args += ["--ca", str(certificates / "ca.pem")]
    args += ["--cert", str(certificates / "client.pem"), "--key", str(certificates / "client.key")]
    with process("worker", *args) as worker:
        worker.wait_for("connected")
        assert worker.end() == 0


@pytest.mark.broker
def test_worker_refuses_a_broker_of_another_authority(make_mosquitto, tiny_bundle, certificates):
    broker = make_mosquitto(tls=certificates)
    args = ["worker", "--bundle", str(tiny_bundle.root), "--broker", broker.url]
    done = run(*args, "--ca", str(certificates / "other-ca.pem"))
    assert done.returncode == 6
    assert "certificate" in done.stderr
    assert "Traceback" not in done.stderr
