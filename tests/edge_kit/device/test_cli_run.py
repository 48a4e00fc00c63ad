"""The command itself, as a process, against a real mosquitto."""

from __future__ import annotations

import json
import os
import pty
import signal
import time

import pytest

from edge_kit.delivery.spool import Spool
from edge_kit.link import Delivery, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import Topics
from tests.support.device import DOUBTFUL, PHOTOS, WAIT_S, Worker, finish, kinds
from tests.support.mosquitto import free_port

pytestmark = pytest.mark.broker


def test_json_lines_are_all_that_stdout_gets_and_every_frame_is_answered(edge):
    code, lines, err = finish(edge("--json"))
    assert code == 0
    assert kinds(lines) == {
        n: ["device final" if n % 2 else "device standing"] for n in range(PHOTOS)
    }
    assert lines[-1]["summary"]["run"]["frames"] == PHOTOS
    assert "source = " in err and "threshold" in err


def test_low_confidence_frames_are_finished_by_a_worker(edge, mosquitto, worker):
    code, lines, _err = finish(edge("--json", "--broker", mosquitto.url))
    assert code == 0
    expected = {n: ["device final"] for n in range(1, PHOTOS, 2)}
    expected |= {n: ["device provisional", "cloud final"] for n in range(0, PHOTOS, 2)}
    assert kinds(lines) == expected
    cloud = [line for line in lines if line.get("tier") == "cloud"]
    assert {c["class"] for c in cloud} == {"blue"} and all(c["round_trip_ms"] > 0 for c in cloud)
    run = lines[-1]["summary"]["run"]
    assert (run["offloaded"], run["answered"], run["lost"]) == (DOUBTFUL, DOUBTFUL, 0)


def test_missing_broker_loses_nothing_and_the_next_run_sends_what_waits(edge, make_mosquitto):
    port = free_port()
    first = edge("--json", "--broker", f"mqtt://127.0.0.1:{port}", "--linger", "0.2")
    code, lines, err = finish(first)
    run = lines[-1]["summary"]["run"]
    assert code == 0 and (run["pending"], run["lost"]) == (DOUBTFUL, 0)
    assert "nothing listens" in err and "wait in the spool" in err

    broker = make_mosquitto()
    worker = Worker(broker)
    code, lines, err = finish(edge("--json", "--broker", broker.url, "--limit", "1"))
    worker.stop()
    assert code == 0 and f"{DOUBTFUL} samples of earlier runs" in err
    earlier = [line for line in lines if line.get("tier") == "cloud"]
    assert {line["index"] for line in earlier} == set(range(0, PHOTOS, 2))
    assert lines[-1]["summary"]["run"]["lost"] == 0


def test_kill_9_loses_nothing(edge, mosquitto, worker):
    args = ("--json", "--broker", mosquitto.url, "--fps", "20")
    seen: list[dict] = []
    for lines_before_kill in (2, 9):
        child = edge(*args)
        for _ in range(lines_before_kill):
            seen.append(json.loads(child.stdout.readline()))
        child.send_signal(signal.SIGKILL)
        child.wait(WAIT_S)
        seen += [json.loads(t) for t in child.stdout.read().splitlines() if t.endswith("}")]
    code, lines, _err = finish(edge(*args))
    seen += lines
    assert code == 0
    provisional = {line["sample"] for line in seen if line.get("status") == "provisional"}
    final = {line["sample"] for line in seen if line.get("tier") == "cloud"}
    assert len(provisional) >= DOUBTFUL and provisional <= final
    total = lines[-1]["summary"]["total"]
    assert total["offloaded"] == total["answered"] >= len(provisional)


def test_sigterm_ends_cleanly_and_keeps_what_is_unanswered(edge, mosquitto, tmp_path):
    watcher = MqttLink(mosquitto.address, "watcher", [Subscription(Topics("cam").status)])
    watcher.start()
    child = edge("--json", "--broker", mosquitto.url, "--fps", "2")
    statuses: list[dict] = []

    def until(state: str) -> None:
        while not statuses or statuses[-1]["state"] != state:
            event = watcher.events.get(timeout=WAIT_S)
            if isinstance(event, Delivery):
                statuses.append(json.loads(event.payload))

    until("online")
    first = json.loads(child.stdout.readline())
    assert first["status"] == "provisional"
    child.send_signal(signal.SIGTERM)
    code, lines, _err = finish(child)
    until("offline")
    watcher.stop()
    run = lines[-1]["summary"]["run"]
    assert code == 0 and run["pending"] >= 1 and run["lost"] == 0 and run["frames"] < PHOTOS
    assert statuses[-1]["why"] == "stopped"
    spool = Spool(tmp_path / "spool.db")
    assert first["sample"] in [s.hex() for s in spool.pending()]
    spool.close()


def test_broker_that_disappears_and_returns_loses_nothing(edge, make_mosquitto):
    broker = make_mosquitto()
    child = edge("--json", "--broker", broker.url, "--fps", "8")
    lines = [json.loads(child.stdout.readline()) for _ in range(2)]
    broker.kill()
    lines.append(json.loads(child.stdout.readline()))
    broker.start()
    worker = Worker(broker)
    code, rest, err = finish(child)
    worker.stop()
    run = rest[-1]["summary"]["run"]
    assert code == 0 and (run["answered"], run["lost"]) == (DOUBTFUL, 0)
    assert "was lost; samples wait" in err and "connected to the broker again" in err


def test_tls_with_user_and_certificates_works_end_to_end(
    edge, make_mosquitto, certificates, tmp_path
):
    broker = make_mosquitto(tls=certificates, client_certs=True, users={"cam": "pw"})
    (tmp_path / "secret").write_text("pw\n")
    config = tmp_path / "edge-kit.toml"
    config.write_text(
        f'broker = "mqtts://cam@127.0.0.1:{broker.port}"\n'
        f'password_file = "{tmp_path / "secret"}"\n'
        f'tls_ca = "{certificates / "ca.pem"}"\n'
        f'tls_cert = "{certificates / "client.pem"}"\n'
        f'tls_key = "{certificates / "client.key"}"\n'
        "linger = 0\n"
    )
    code, lines, err = finish(edge("--json", "--config", str(config)))
    assert code == 0 and lines[-1]["summary"]["run"]["lost"] == 0
    assert "pw" not in err.replace("/secret", "")
    # Linger, or a few quick frames are over before the handshake has failed.
    other = ["--tls-ca", str(certificates / "other-ca.pem"), "--linger", "30"]
    code, _lines, err = finish(edge("--json", "--config", str(config), *other))
    assert code == 6 and "not signed by a trusted authority" in err


def test_older_of_two_devices_with_one_id_ends_with_an_error(edge, mosquitto, tmp_path):
    first = edge("--json", "--broker", mosquitto.url, "--fps", "1")
    first.stdout.readline()
    second = edge(
        "--json", "--broker", mosquitto.url, "--fps", "1", "--spool", str(tmp_path / "2.db"),
        "--linger", "0",
    )  # fmt: skip
    code, _lines, err = finish(first)
    assert code == 6 and "another device runs with the id 'cam'" in err
    code, _lines, err = finish(second)
    assert code == 0 and "another device" not in err


def test_terminal_gets_one_live_line_and_the_summary(edge):
    master, slave = pty.openpty()
    child = edge("--fps", "20", stdout=slave)
    os.close(slave)
    shown = b""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            shown += os.read(master, 1000)
        except OSError:  # the child closed its end
            break
    os.close(master)
    _out, err = child.communicate(timeout=WAIT_S)
    text = shown.decode()
    assert child.returncode == 0
    assert text.count("\r") >= 2 and text.count("\n") == 1 and "answered here" in text
    assert f"{PHOTOS} frames, {DOUBTFUL} answered here" in err


def test_without_a_terminal_each_result_is_a_plain_line(edge):
    child = edge()
    out, _err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 0 and len(out.splitlines()) == PHOTOS
    assert "01.png: green 1.00 [device, " in out
    assert (
        "00.png: red 0.33 [device, " in out and "(low confidence; no broker is configured)" in out
    )
