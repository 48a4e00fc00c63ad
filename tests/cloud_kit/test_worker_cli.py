from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cloud_kit.commands.health import health
from cloud_kit.commands.worker import worker
from cloud_kit.worker.health import Heartbeat, check
from cloud_kit.worker.models import open_models
from cloud_kit.worker.service import state_topic
from cloud_kit.worker.settings import PASSWORD, ServiceSettings, read_password
from cloud_kit.worker.worker import Vitals, WorkerSettings
from edge_kit.errors import ConfigError
from edge_kit.link import Connected, Delivery, Subscription
from edge_kit.link.mqtt import BrokerAddress, MqttLink
from edge_kit.wire import Refusal, ResultMessage, Topics
from tests.support.cloud_command import process, run
from tests.support.messages import TIMEOUT, fake_tail, message, sample_id
from tests.support.tiny import make_bundle

ROOT = Path(__file__).resolve().parents[2]
WELL = Vitals(connected=True, engine_s=0.0, draining=False)
ADDRESS = BrokerAddress.parse("mqtt://worker@broker.example", password="hidden")

# ServiceSettings


def test_settings_show_no_password():
    settings = ServiceSettings((Path("a"),), ADDRESS)
    assert "hidden" not in json.dumps(settings.to_json())
    assert "hidden" not in repr(settings)
    assert settings.to_json()["password"] == "***"


@pytest.mark.parametrize(("lanes", "most"), [(1, 48), (2, 72)])
def test_receive_maximum_is_a_batch_a_lane_and_one_more(lanes, most):
    work = WorkerSettings(batch=24, lanes=lanes)
    assert ServiceSettings((Path("a"),), ADDRESS, work=work).receive_maximum == most


def test_client_ids_differ_and_carry_the_name():
    settings = ServiceSettings((Path("a"),), ADDRESS, name="ward 3/left")
    first, second = settings.new_client_id(), settings.new_client_id()
    assert first != second
    assert first.startswith("ward-3-left-")


@pytest.mark.parametrize(
    ("changes", "said"), [({"bundles": ()}, "--bundle"), ({"pool": "a/b"}, "pool")]
)
def test_senseless_settings_are_named(changes, said):
    with pytest.raises(ConfigError, match=said):
        ServiceSettings(**({"bundles": (Path("a"),), "broker": ADDRESS} | changes))


def test_a_password_comes_from_a_file_or_the_environment(tmp_path):
    file = tmp_path / "password"
    file.write_text("from file\n")
    assert read_password(file, {"CLOUD_KIT_PASSWORD": "other"}) == "from file"
    assert read_password(None, {"CLOUD_KIT_PASSWORD": "other"}) == "other"
    assert read_password(None, {}) == ""
    with pytest.raises(ConfigError, match="cannot be read"):
        read_password(tmp_path / "missing", {})
    file.write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        read_password(file, {})


@pytest.mark.parametrize("file", ["Containerfile", "compose.yaml", "docs/cloud.md"])
def test_files_name_only_variables_that_exist(file):
    known = {o.envvar for c in (worker, health) for o in c.params if getattr(o, "envvar", "")}
    named = set(re.findall(r"CLOUD_KIT_[A-Z_]+", (ROOT / file).read_text()))
    assert named
    assert named <= known | {PASSWORD}


def test_the_table_of_the_documentation_is_complete():
    text = (ROOT / "docs/cloud.md").read_text()
    for option in worker.params:
        if option.name not in ("ca", "cert", "key", "name", "verbose"):
            assert f"`{option.envvar}`" in text, option.name
            assert option.opts[0] in text


# Health


def test_a_fresh_heartbeat_is_well(tmp_path):
    path = tmp_path / "beat"
    Heartbeat(path, clock=lambda: 100.0).beat(WELL)
    assert check(path, now=101.0).ok


@pytest.mark.parametrize(
    ("vitals", "now", "said"),
    [
        (WELL, 200.0, "100 s old"),
        (Vitals(connected=False, engine_s=0.0, draining=False), 101.0, "no connection"),
        (Vitals(connected=True, engine_s=90.0, draining=False), 101.0, "in the engine for 90 s"),
    ],
)
def test_an_ill_worker_is_called_so(tmp_path, vitals, now, said):
    path = tmp_path / "beat"
    Heartbeat(path, clock=lambda: 100.0).beat(vitals)
    verdict = check(path, now=now)
    assert not verdict.ok
    assert said in verdict.detail


def test_liveness_does_not_ask_for_a_connection(tmp_path):
    path = tmp_path / "beat"
    Heartbeat(path, clock=lambda: 100.0).beat(Vitals(False, 0.0, False))
    assert check(path, now=101.0, alive_only=True).ok


@pytest.mark.parametrize("content", ["", "{", "[]", '{"at": "x"}', '{"at": 1}'])
def test_a_damaged_heartbeat_is_no_heartbeat(tmp_path, content):
    path = tmp_path / "beat"
    path.write_text(content)
    assert "cannot be read" in check(path).detail


def test_beats_are_spaced_and_survive_a_clock_that_is_set_back(tmp_path):
    now = [100.0]
    path = tmp_path / "beat"
    heart = Heartbeat(path, period_s=2.0, clock=lambda: now[0])
    at = []
    for now[0] in (100.0, 101.0, 102.5, 50.0):
        heart.beat(WELL)
        at.append(json.loads(path.read_text())["at"])
    assert at == [100.0, 100.0, 102.5, 50.0]


def test_a_change_is_written_at_once(tmp_path):
    path = tmp_path / "beat"
    heart = Heartbeat(path, period_s=2.0, clock=lambda: 100.0)
    for vitals in (Vitals(False, 0.0, False), WELL, Vitals(True, 0.0, True)):
        heart.beat(vitals)
        state = json.loads(path.read_text())
        assert (state["connected"], state["draining"]) == (vitals.connected, vitals.draining)


def test_a_beat_from_the_future_is_no_sign_of_life(tmp_path):
    path = tmp_path / "beat"
    Heartbeat(path, clock=lambda: 4000.0).beat(WELL)
    assert "ahead of the clock" in check(path, now=400.0).detail


def test_a_worker_whose_health_file_cannot_be_written_does_not_start(tiny_bundle, tmp_path):
    args = ["worker", "--bundle", str(tiny_bundle.root), "--health-file", str(tmp_path / "no/beat")]
    done = run(*args)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.broker
def test_a_health_file_that_cannot_be_written_any_more_does_not_end_a_worker(
    mosquitto, tiny_bundle, tmp_path
):
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


def test_a_health_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        Heartbeat(tmp_path / "missing/beat").beat(WELL)


# The commands


@pytest.mark.broker
def test_a_worker_answers_reports_and_stops(mosquitto, tiny_bundle, tmp_path):
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


def test_a_worker_without_a_bundle_says_how_to_name_one():
    done = run("worker")
    assert done.returncode == 2
    assert done.stderr.startswith("cloud-kit: error: no bundle is given; name one with --bundle")


def test_a_bundle_that_is_named_twice_is_loaded_once(tiny_bundle, caplog):
    opened = []

    def open_tail(bundle, threads):
        opened.append(bundle.index)
        return fake_tail().engine

    models = open_models([tiny_bundle.root] * 2, 1, open_tail=open_tail)
    assert len(models.tails) == len(opened) == 1
    assert "another bundle here holds too" in caplog.text


def test_a_missing_bundle_is_one_sentence():
    done = run("worker", "--bundle", "/nowhere")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert "/nowhere" in done.stderr


def test_a_tampered_bundle_is_not_served(tmp_path):
    bundle = make_bundle(tmp_path / "bundle")
    with (bundle.root / "cloud/tail.onnx").open("ab") as file:
        file.write(b"\0")
    done = run("worker", "--bundle", str(bundle.root))
    assert done.returncode == 3
    assert "tail.onnx" in done.stderr


@pytest.mark.broker
def test_a_refused_worker_ends_with_the_brokers_reason(make_mosquitto, tiny_bundle):
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
def test_a_worker_connects_with_a_client_certificate(make_mosquitto, tiny_bundle, certificates):
    broker = make_mosquitto(tls=certificates, client_certs=True)
    args = ["--bundle", str(tiny_bundle.root), "--broker", broker.url, "--json"]
    args += ["--ca", str(certificates / "ca.pem")]
    args += ["--cert", str(certificates / "client.pem"), "--key", str(certificates / "client.key")]
    with process("worker", *args) as worker:
        worker.wait_for("connected")
        assert worker.end() == 0


@pytest.mark.broker
def test_a_worker_does_not_trust_a_strange_broker(make_mosquitto, tiny_bundle, certificates):
    broker = make_mosquitto(tls=certificates)
    args = ["worker", "--bundle", str(tiny_bundle.root), "--broker", broker.url]
    done = run(*args, "--ca", str(certificates / "other-ca.pem"))
    assert done.returncode == 6
    assert "certificate" in done.stderr
    assert "Traceback" not in done.stderr
