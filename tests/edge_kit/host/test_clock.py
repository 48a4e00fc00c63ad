"""Boards without a battery for their clock: what waits for it, and what a jump must not break."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge_kit.delivery.spool import Outcome, Row, Spool
from edge_kit.device.config import resolve
from edge_kit.device.output import JsonLines
from edge_kit.device.service import Service
from edge_kit.doctor import examine
from edge_kit.errors import LinkError
from edge_kit.host.clock import CLOCK_FLOOR, GRACE_S, REMIND_S, SYNCHRONIZED, ClockWait
from edge_kit.link import Connected, Delivery, Subscription
from edge_kit.link.address import BrokerAddress
from edge_kit.link.mqtt import MqttLink
from edge_kit.sources.source import Frame, MemorySource
from edge_kit.wire import Topics
from tests.support.device import DOUBTFUL, PHOTOS, WAIT_S, Worker
from tests.support.rig import Clock, Rig, low_confidence

UNSET = 1_665_000_000.0  # what a board shows before anybody set its clock: 2022
SET = 1_800_000_000.0


class Bench:
    """A wait, and everything that it looks at."""

    def __init__(self, root: Path, *, timesyncd: bool = True, kernel: bool | None = None) -> None:
        self.file = root / "timesync/synchronized"
        if timesyncd:
            self.file.parent.mkdir()
        self.wall, self.mono = Clock(), Clock()
        self.wall.now = UNSET
        self.kernel = kernel
        self.wait = ClockWait(
            synchronized=self.file, kernel=lambda: self.kernel, wall=self.wall, monotonic=self.mono
        )

    def later(self, seconds: float) -> str:
        self.mono.now += seconds
        return self.wait.look()


def test_wait_and_its_end_are_logged_once_each(tmp_path):
    bench = Bench(tmp_path)
    assert "waiting until the clock is set (it shows 2022-" in bench.wait.look()
    assert [bench.later(1) for _ in range(600)] == [""] * 600 and not bench.wait.over
    bench.file.touch()
    bench.wall.now = SET
    assert bench.later(1) == "the clock is set: 2027-01-15 08:00 UTC"
    assert bench.wait.over and bench.wait.waited_s == 601
    bench.file.unlink()
    assert bench.later(1) == "" and bench.wait.over  # once set, it stays so


def test_clock_already_set_logs_nothing(tmp_path):
    bench = Bench(tmp_path)
    bench.file.touch()
    assert bench.wait.look() == "" and bench.wait.over


def test_kernel_that_says_synchronized_ends_the_wait(tmp_path):
    bench = Bench(tmp_path, timesyncd=False, kernel=False)
    assert bench.wait.look() and not bench.wait.over
    bench.kernel = True
    assert "the clock is set" in bench.later(1) and bench.wait.over


def test_missing_time_server_is_logged_each_hour(tmp_path):
    bench = Bench(tmp_path)
    bench.wall.now = SET  # however possible the year is: timesyncd runs, and will know
    bench.wait.look()
    said = [text for _ in range(3 * 60) if (text := bench.later(REMIND_S / 60))]
    assert len(said) == 3 and all("has reached no time server" in text for text in said)
    assert not bench.wait.over


def test_plausible_year_without_time_service_is_accepted_and_logged(tmp_path):
    bench = Bench(tmp_path, timesyncd=False)
    bench.wall.now = SET
    bench.wait.look()
    assert bench.later(GRACE_S - 1) == "" and not bench.wait.over
    assert "taken as right" in bench.later(2) and bench.wait.over


def test_impossible_year_without_time_service_is_never_accepted(tmp_path):
    bench = Bench(tmp_path, timesyncd=False)
    bench.wall.now = CLOCK_FLOOR - 1
    bench.wait.look()
    assert bench.later(GRACE_S) == ""
    assert "systemd-timesyncd does not run; start it" in bench.later(REMIND_S)
    assert not bench.wait.over


def test_file_is_the_one_that_timesyncd_writes():
    assert str(SYNCHRONIZED) == "/run/systemd/timesync/synchronized"


# what a jump must not break


def test_answer_ages_are_right_after_the_clock_is_set(tmp_path):
    rig = Rig(tmp_path / "spool.db", dated=False)
    rig.wall.now = UNSET
    rig.connect()
    rig.box.submit([low_confidence()])  # captured one second ago
    (message,) = rig.received()
    rig.wall.now = SET
    rig.clock.now += 2
    rig.spool.clock_was_set()
    rig.answer(message)
    assert rig.out[0].captured_at == 1_000_000.0 and rig.out[1].captured_at == SET - 3
    assert [r.latency_ms for r in rig.out] == [pytest.approx(1000), pytest.approx(3000)]
    rig.spool.close()


def test_ages_of_the_devices_own_answers_are_right_while_the_clock_jumps(
    tiny_bundle, photo_folder, monkeypatch, probe_cache
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(probe_cache))
    wall = Clock()
    wall.now = UNSET

    def jumping() -> float:
        wall.now += 86400.0
        return wall.now

    monkeypatch.setattr("time.time", jumping)
    out = io.StringIO()
    flags = {"bundle": tiny_bundle.root, "source": photo_folder, "engine": "onnx"}
    Service(resolve(flags, {"HOME": "/nowhere"}), JsonLines(out), lambda _text: None).run()
    lines = [json.loads(line) for line in out.getvalue().splitlines()][:-1]
    assert len(lines) == PHOTOS and all(0 < line["latency_ms"] < 86400e3 for line in lines)


def test_restart_after_the_clock_is_set_expires_each_sample_at_its_time(tmp_path):
    """The first boot: spooled in 2022, set to 2027, restarted with a certificate."""
    path = tmp_path / "spool.db"
    # A later system's unset clock is a year that looks possible.
    wall, mono = Clock(), Clock()
    wall.now = CLOCK_FLOOR + 86400
    spool = Spool(path, max_age_s=3600, dated=False, clock=wall, monotonic=mono)
    old, new, gone = (spool.next_id() for _ in range(3))
    spool.settle([Row(old, b"x", ""), Row(gone, b"z", "")])
    mono.now += 3000
    spool.settle([Row(new, b"y", "")], {gone: Outcome.ANSWERED})
    wall.now = SET
    spool.clock_was_set()
    spool.close()

    wall.now += 500
    mono.now = 5.0  # the next boot's
    spool = Spool(path, max_age_s=3600, clock=wall, monotonic=mono)
    assert spool.overdue() == [] and spool.pending() == [old, new]
    assert spool.get(old).age_s == pytest.approx(3500)
    mono.now += 200
    assert spool.overdue() == [old]
    spool.close()


def test_samples_of_a_run_without_time_age_from_when_the_time_is_known(tmp_path):
    path = tmp_path / "spool.db"
    wall, mono = Clock(), Clock()
    wall.now = UNSET
    spool = Spool(path, max_age_s=3600, dated=False, clock=wall, monotonic=mono)
    sample = spool.next_id()
    spool.settle([Row(sample, b"x", "")])
    spool.close()
    for restart in range(3):  # however often it starts again
        wall.now = SET + restart * 1300
        spool = Spool(path, max_age_s=3600, clock=wall, monotonic=mono)
        assert spool.overdue() == []
        spool.close()
    wall.now = SET + 3601
    spool = Spool(path, max_age_s=3600, clock=wall, monotonic=mono)
    assert spool.overdue() == [sample]
    spool.close()


# the device


def test_doctor_connects_to_no_broker_before_the_clock_is_set(tmp_path):
    asked = []
    bench = Bench(tmp_path)

    def make_link(address: BrokerAddress, *_rest):
        asked.append(address)
        raise LinkError("asked")

    secure = resolve({"broker": "mqtts://127.0.0.1:8883"}, {})
    found = list(examine(secure, make_link, bench.wait))
    assert found[-1].name == "broker" and found[-1].ok is None and asked == []
    assert "waiting until the clock is set" in found[-1].detail
    bench.file.touch()
    with pytest.raises(LinkError, match="asked"):
        list(examine(secure, make_link, bench.wait))
    plain = resolve({"broker": "mqtt://127.0.0.1:1883"}, {})
    bench.file.unlink()
    with pytest.raises(LinkError, match="asked"):
        list(examine(plain, make_link, bench.wait))


class Watched(io.StringIO):
    """A standard output that tells when the n-th result was written."""

    def __init__(self) -> None:
        super().__init__()
        self.full = threading.Event()
        self.until = PHOTOS

    def write(self, text: str) -> int:
        size = super().write(text)
        if self.getvalue().count("\n") >= self.until:
            self.full.set()
        return size


@pytest.mark.broker
def test_device_connects_once_the_clock_is_set_and_all_is_answered(
    make_mosquitto, certificates, tiny_bundle, photo_folder, tmp_path, monkeypatch, probe_cache
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(probe_cache))
    broker = make_mosquitto(tls=certificates)
    bench = Bench(tmp_path)
    config = resolve(
        {
            "bundle": tiny_bundle.root,
            "source": photo_folder,
            "engine": "onnx",
            "device_id": "cam",
            "broker": broker.url,
            "tls_ca": certificates / "ca.pem",
            "spool": tmp_path / "spool.db",
            "wait_for_clock": True,
            "linger": WAIT_S,
        },
        {},
    )
    out, said = Watched(), []
    reported = threading.Event()

    def report(text: str) -> None:
        said.append(text)
        reported.set()

    service = Service(config, JsonLines(out), report, clock=bench.wait)
    connections = broker.log.read_text().count("New connection")  # of the test's own probe
    thread = threading.Thread(target=service.run)
    thread.start()
    assert out.full.wait(WAIT_S) and reported.wait(WAIT_S)
    assert "waiting until the clock is set" in said[0]
    # All frames are classified and low-confidence ones spooled; the broker saw no connection.
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert sum(line["status"] == "provisional" for line in lines) == DOUBTFUL
    assert broker.log.read_text().count("New connection") == connections

    worker = Worker(broker)
    watcher = MqttLink(broker.address, "watcher", [Subscription(Topics("cam").state)])
    watcher.start()
    assert isinstance(watcher.events.get(timeout=WAIT_S), Connected)
    bench.mono.now += 77
    bench.file.touch()
    thread.join(WAIT_S)
    state = watcher.events.get(timeout=WAIT_S)
    assert isinstance(state, Delivery)
    assert json.loads(state.payload)["counters"]["clock_wait_s"] == 77
    watcher.stop()
    worker.stop()
    assert not thread.is_alive()
    run = json.loads(out.getvalue().splitlines()[-1])["summary"]["run"]
    assert (run["answered"], run["pending"], run["lost"]) == (DOUBTFUL, 0, 0)
    assert len(said) == 2 and said[1].startswith("the clock is set")


@pytest.mark.broker
def test_broker_without_certificates_needs_no_clock(
    mosquitto, worker, tiny_bundle, photo_folder, tmp_path, monkeypatch, probe_cache
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(probe_cache))
    bench = Bench(tmp_path)
    flags = {"bundle": tiny_bundle.root, "source": photo_folder, "engine": "onnx",
             "device_id": "cam", "broker": mosquitto.url, "spool": tmp_path / "spool.db",
             "wait_for_clock": True}  # fmt: skip
    said: list[str] = []
    service = Service(resolve(flags, {}), JsonLines(io.StringIO()), said.append, clock=bench.wait)
    assert service.run()["run"]["answered"] == DOUBTFUL
    assert said == [] and not bench.wait.over


class Patient:
    """A source that yields its second half only once something was said."""

    live, dropped, skipped, name = False, 0, 0, "patient"

    def __init__(self, said: threading.Event) -> None:
        self._inner = MemorySource([np.full((16, 16, 3), 120, np.uint8)] * PHOTOS)
        self._said = said

    def frames(self) -> Iterator[Frame]:
        for frame in self._inner.frames():
            if frame.index == PHOTOS // 2:
                assert self._said.wait(WAIT_S)
            yield frame

    def close(self) -> None:
        self._inner.close()


@pytest.mark.broker
@pytest.mark.parametrize("keep_trying", [False, True])
def test_broker_that_requires_a_certificate_ends_the_run_without_keep_trying(
    keep_trying, make_mosquitto, certificates, tiny_bundle, tmp_path, monkeypatch, probe_cache
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(probe_cache))
    broker = make_mosquitto(tls=certificates, client_certs=True)
    refused = threading.Event()
    monkeypatch.setattr("edge_kit.device.service.open_source", lambda **_: Patient(refused))
    flags = {"bundle": tiny_bundle.root, "engine": "onnx", "device_id": "cam",
             "broker": broker.url, "tls_ca": certificates / "ca.pem",
             "spool": tmp_path / "spool.db", "keep_trying": keep_trying, "linger": 0}  # fmt: skip
    out, said = io.StringIO(), []

    def report(text: str) -> None:
        said.append(text)
        refused.set()

    service = Service(resolve(flags, {}), JsonLines(out), report)
    with pytest.raises(LinkError, match="wants a client certificate"):
        service.run()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    if keep_trying:  # said once, at its time; then at the end, for the exit code
        run = lines[-1]["summary"]["run"]
        assert (run["frames"], run["pending"], run["lost"]) == (PHOTOS, PHOTOS, 0)
        assert len(said) == 1 and "trying again every five minutes" in said[0]
    else:
        assert len(lines) <= PHOTOS // 2 + 1 and "summary" not in lines[-1]
