"""The command itself, as a process, against a real mosquitto."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_kit.bundle import pack
from edge_kit.link import Connected, Delivery, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.spool import Spool
from edge_kit.wire import FeatureMessage, Refusal, ResultMessage, Topics, shared_filter
from tests.mosquitto import Mosquitto, free_port

pytestmark = pytest.mark.broker

WAIT_S = 60.0
PHOTOS = 12  # every other one is grey, so doubtful
DOUBTFUL = PHOTOS // 2


class Worker:
    """Answers every sample with class 2, or refuses it, as a thread of the test."""

    def __init__(self, broker: Mosquitto, refusal: Refusal = Refusal.NONE) -> None:
        self.refusal = refusal
        self.seen: list[bytes] = []
        self._link = MqttLink(broker.address, "worker", [Subscription(shared_filter("w"))])
        self._link.start()
        while not isinstance(self._link.events.get(timeout=WAIT_S), Connected):
            pass
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stopping.is_set():
            event = self._link.events.get()
            if isinstance(event, Delivery):
                header = FeatureMessage.decode(event.payload).header
                self.seen.append(header.sample)
                answer = ResultMessage(
                    header.model, header.sample, self.refusal, 2, confidence=0.9, entropy=0.1
                )
                assert event.response_topic is not None
                self._link.publish(event.response_topic, answer.encode(), correlation=header.sample)
                self._link.ack(event)

    def stop(self) -> None:
        self._stopping.set()
        self._link.stop()
        self._thread.join(WAIT_S)


@pytest.fixture
def worker(mosquitto: Mosquitto) -> Iterator[Worker]:
    worker = Worker(mosquitto)
    yield worker
    worker.stop()


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for index in range(PHOTOS):
        pixels = np.full((16, 16, 3), 120, np.uint8)
        if index % 2:
            pixels[:] = 0
            pixels[..., index % 3] = 255
        Image.fromarray(pixels).save(folder / f"{index:02}.png")
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


Edge = Callable[..., subprocess.Popen]


@pytest.fixture
def edge(tmp_path, photos, tiny_bundle, cache) -> Iterator[Edge]:
    """Start ``edge-kit run`` on the tiny bundle and the photos."""
    children: list[subprocess.Popen] = []
    env = {k: v for k, v in os.environ.items() if not k.startswith("EDGE_KIT_")}
    env |= {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"}

    def start(
        *args: str, source: Path = photos, bundle: Path = tiny_bundle.root, more_env=None, **options
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


def finish(child: subprocess.Popen) -> tuple[int, list[dict], str]:
    """Return exit code, JSON lines and standard error."""
    out, err = child.communicate(timeout=WAIT_S)
    return child.returncode, [json.loads(line) for line in out.splitlines()], err


def kinds(lines: list[dict]) -> dict[int, list[str]]:
    """Return tier and status of each result, by frame."""
    found: dict[int, list[str]] = {}
    for line in lines:
        if "summary" not in line:
            found.setdefault(line["index"], []).append(f"{line['tier']} {line['status']}")
    return found


def test_json_lines_are_all_that_stdout_gets_and_every_frame_is_answered(edge):
    code, lines, err = finish(edge("--json"))
    assert code == 0
    assert kinds(lines) == {
        n: ["device final" if n % 2 else "device standing"] for n in range(PHOTOS)
    }
    assert lines[-1]["summary"]["run"]["frames"] == PHOTOS
    assert "source = " in err and "threshold" in err


def test_doubtful_frames_are_finished_by_a_worker(edge, mosquitto, worker):
    code, lines, _err = finish(edge("--json", "--broker", mosquitto.url))
    assert code == 0
    expected = {n: ["device final"] for n in range(1, PHOTOS, 2)}
    expected |= {n: ["device provisional", "cloud final"] for n in range(0, PHOTOS, 2)}
    assert kinds(lines) == expected
    cloud = [line for line in lines if line.get("tier") == "cloud"]
    assert {c["class"] for c in cloud} == {"blue"} and all(c["round_trip_ms"] > 0 for c in cloud)
    run = lines[-1]["summary"]["run"]
    assert (run["offloaded"], run["answered"], run["lost"]) == (DOUBTFUL, DOUBTFUL, 0)


def test_no_broker_at_all_costs_nothing_and_the_next_run_sends_what_waits(edge, make_mosquitto):
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


def test_a_broker_that_vanishes_and_returns_costs_nothing(edge, make_mosquitto):
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


def test_a_wrong_password_ends_with_a_sentence_and_nothing_is_lost(edge, make_mosquitto, tmp_path):
    broker = make_mosquitto(users={"cam": "right"})
    url = f"mqtt://cam@127.0.0.1:{broker.port}"
    child = edge("--json", "--broker", url, more_env={"EDGE_KIT_PASSWORD": "wrong-secret"})
    out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 6
    assert "edge-kit: error: the broker" in err and "wrong user or password" in err
    assert "Traceback" not in err and "wrong-secret" not in err
    reported = [json.loads(t) for t in out.splitlines() if '"provisional"' in t]
    spool = Spool(tmp_path / "spool.db")
    assert {r["sample"] for r in reported} <= {s.hex() for s in spool.pending()}
    spool.close()


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
    code, _lines, err = finish(
        edge("--json", "--config", str(config), "--tls-ca", str(certificates / "other-ca.pem"))
    )
    assert code == 6 and "not signed by a trusted authority" in err


def test_two_devices_with_one_id_are_told_and_one_goes_on(edge, mosquitto, tmp_path):
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


def test_a_worker_that_refuses_leaves_the_devices_answers_standing(edge, mosquitto, tmp_path):
    worker = Worker(mosquitto, refusal=Refusal.UNKNOWN_MODEL)
    code, lines, _err = finish(edge("--json", "--broker", mosquitto.url))
    worker.stop()
    run = lines[-1]["summary"]["run"]
    assert code == 0 and len(worker.seen) == DOUBTFUL
    assert (run["refused"], run["standing"], run["pending"], run["lost"]) == (6, 6, 0, 0)
    reasons = {line["reason"] for line in lines if line.get("status") == "standing"}
    assert reasons == {"the worker refused it: unknown model"}
    assert lines[-1]["summary"]["total"]["standing"] == DOUBTFUL


def damaged(bundle: Path, out: Path, how: str) -> Path:
    """Return a copy of a bundle, damaged."""
    if how == "packed and truncated":
        pack(bundle, out)
        out.write_bytes(out.read_bytes()[:-100])
        return out
    shutil.copytree(bundle, out)
    file = out / "end/any.onnx"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data[:-9] if how == "truncated" else data)
    return out


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("truncated", "end/any.onnx in .* is truncated or was changed"),
        ("tampered with", "end/any.onnx in .* is truncated or was changed"),
        ("packed and truncated", "is no whole bundle file"),
    ],
)
def test_a_damaged_bundle_is_refused_and_the_spool_stays_as_it_was(
    edge, tiny_bundle, tmp_path, how, sentence
):
    nobody = ("--broker", f"mqtt://127.0.0.1:{free_port()}", "--linger", "0", "--json")
    finish(edge(*nobody))
    bundle = damaged(tiny_bundle.root, tmp_path / "damaged", how)
    code, lines, err = finish(edge(*nobody, bundle=bundle))
    assert (code, lines) == (3, []) and "Traceback" not in err
    assert re.search(f"edge-kit: error: .*{sentence}", err)
    spool = Spool(tmp_path / "spool.db")
    assert len(spool) == spool.counters()["offloaded"] == DOUBTFUL
    spool.close()


def test_an_unreadable_photo_is_skipped_in_a_folder_and_an_error_alone(edge, photos, tmp_path):
    some = tmp_path / "some"
    shutil.copytree(photos, some)
    (some / "03.png").write_bytes((some / "03.png").read_bytes()[:40])
    nobody = ("--broker", f"mqtt://127.0.0.1:{free_port()}", "--linger", "0", "--json")
    code, lines, err = finish(edge(*nobody, source=some))
    run = lines[-1]["summary"]["run"]
    assert code == 0 and "skipped: " in err and "03.png cannot be read as a photo" in err
    assert (run["frames"], run["skipped"], run["lost"]) == (PHOTOS - 1, 1, 0)
    code, lines, err = finish(edge(*nobody, source=some / "03.png"))
    assert code == 5 and "03.png cannot be read as a photo" in err and "Traceback" not in err
    spool = Spool(tmp_path / "spool.db")
    assert len(spool) == DOUBTFUL
    spool.close()


def test_one_spool_serves_one_process(edge, mosquitto):
    first = edge("--json", "--broker", mosquitto.url, "--fps", "1")
    first.stdout.readline()
    code, _lines, err = finish(edge("--json", "--broker", mosquitto.url))
    assert code == 7 and "another edge-kit uses the spool" in err


def test_a_disk_that_fills_up_lets_answers_stand_and_keeps_what_it_has(edge, mosquitto, tmp_path):
    def small_files() -> None:  # SQLite's index of its log alone takes 32 KiB
        resource.setrlimit(resource.RLIMIT_FSIZE, (48_000, 48_000))

    many = tmp_path / "many"
    many.mkdir()
    for index in range(200):
        Image.fromarray(np.full((16, 16, 3), 120, np.uint8)).save(many / f"{index:03}.png")
    args = ("--json", "--broker", mosquitto.url, "--linger", "0")
    code, lines, err = finish(edge(*args, source=many, preexec_fn=small_files))
    assert code == 7 and "edge-kit: error:" in err and "spool" in err and "Traceback" not in err
    results = kinds(lines)
    assert len(results) == 200
    run = lines[-1]["summary"]["run"]
    standing = [n for n, kind in results.items() if kind == ["device standing"]]
    assert len(standing) == run["unspooled"] > 0
    assert run["offloaded"] + run["unspooled"] == 200 and run["lost"] == 0
    spool = Spool(tmp_path / "spool.db")
    assert len(spool) == run["pending"] == run["offloaded"]
    spool.close()


def test_a_reader_that_leaves_ends_the_run_quietly(edge):
    child = edge("--json", "--fps", "20")
    child.stdout.readline()
    child.stdout.close()
    child.stdout = None
    _out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode in (0, 141) and "Traceback" not in err


def test_output_on_a_full_disk_gets_a_sentence_and_loses_no_sample(edge, mosquitto, tmp_path):
    with Path("/dev/full").open("w") as full:
        child = edge("--json", "--broker", mosquitto.url, "--linger", "0", stdout=full)
        _out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 1 and "Traceback" not in err
    assert "error: results can no longer be written: No space left on device" in err
    spool = Spool(tmp_path / "spool.db")
    assert len(spool) == spool.counters()["offloaded"] >= 1
    spool.close()


def test_a_closed_output_is_refused_before_anything_takes_its_number(edge, tmp_path):
    child = edge("--broker", "mqtt://127.0.0.1:1", stdout=None, preexec_fn=lambda: os.close(1))
    _out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 2 and "standard output is closed" in err
    assert not (tmp_path / "spool.db").exists()


@pytest.mark.parametrize("form", ["--json", ""])
def test_names_that_are_no_unicode_reach_any_output_and_the_spool(edge, mosquitto, tmp_path, form):
    odd = tmp_path / "odd"
    odd.mkdir()
    for name in (b"\xff.png", "\u00fc\n.png".encode()):
        path = Path(os.fsdecode(os.fsencode(odd) + b"/" + name))
        Image.fromarray(np.full((16, 16, 3), 120, np.uint8)).save(path)
    child = edge(
        *filter(None, ["--broker", mosquitto.url, "--linger", "0", form]),
        source=odd, more_env={"PYTHONIOENCODING": "ascii:strict"},
    )  # fmt: skip
    out, err = child.communicate(timeout=WAIT_S)
    assert child.returncode == 0 and "Traceback" not in err
    if form:
        names = {json.loads(line).get("source") for line in out.splitlines()} - {None}
        assert names == {"\udcff.png", "\u00fc\n.png"}
    else:
        assert sorted(line.split(":")[0] for line in out.splitlines()) == [
            "\\udcff.png", "\\xfc\\n.png"
        ]  # fmt: skip
    spool = Spool(tmp_path / "spool.db")
    assert len(spool) == 2
    spool.close()


def test_a_terminal_gets_one_live_line_and_the_summary(edge):
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
    assert "00.png: red 0.33 [device, " in out and "(doubtful; no broker is configured)" in out


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        (("--camera", "0"), 2, "either --camera or --source"),
        (("--threshold", "7"), 2, "threshold = 7 lies outside"),
        (("--threshold", "0.1", "--target-offload", "0.3"), 2, "not both"),
        (("--broker", "mqtt://u:secret@h"), 2, "holds a password"),
        (("--engine", "warp"), 2, "warp"),
        (("--bundle", "elsewhere"), 2, "given twice"),
        (("--spool", "/proc/nothing/spool.db", "--broker", "mqtt://h"), 7, "cannot be made"),
    ],
)
def test_a_mistake_gets_a_sentence_an_exit_code_and_no_traceback(edge, args, code, sentence):
    child = edge(*args)
    _out, err = child.communicate(timeout=WAIT_S)
    assert (child.returncode, "Traceback" in err) == (code, False)
    assert sentence in err and "secret" not in err
