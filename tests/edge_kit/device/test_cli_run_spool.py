"""A spool that cannot be used, as a process: frames are answered here until there is room."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_kit.delivery.spool import Spool
from edge_kit.link import Delivery, Subscription
from edge_kit.link.mqtt import MqttLink
from edge_kit.wire import Topics
from tests.support.device import WAIT_S, finish, kinds
from tests.support.rig import spoil

pytestmark = pytest.mark.broker

UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
NOBODY = ("--broker", "mqtt://127.0.0.1:1", "--linger", "0", "--json")


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    """200 grey photos, of which the device is never sure."""
    folder = tmp_path_factory.mktemp("many")
    for index in range(200):
        Image.fromarray(np.full((16, 16, 3), 120, np.uint8)).save(folder / f"{index:03}.png")
    return folder


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB of its own."""
    place = tmp_path / "mounted"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


class Running:
    """A run whose lines are read as they come."""

    def __init__(self, child: subprocess.Popen) -> None:
        self.child = child
        self.lines: list[dict] = []

    def until(self, wanted: str, count: int = 1) -> None:
        """Read until so many results of a tier and status came."""
        deadline = time.monotonic() + WAIT_S
        while count:
            assert time.monotonic() < deadline
            self.lines.append(json.loads(self.child.stdout.readline()))
            count -= f"{self.lines[-1]['tier']} {self.lines[-1]['status']}" == wanted

    def end(self) -> tuple[int, dict, str]:
        self.child.send_signal(signal.SIGTERM)
        code, rest, err = finish(self.child)
        assert "Traceback" not in err
        self.lines += rest
        return code, rest[-1]["summary"], err


def state_of(broker) -> dict:
    """Return what the device tells next in its state."""
    watcher = MqttLink(broker.address, "watcher", [Subscription(Topics("cam").state)])
    watcher.start()
    while not isinstance(event := watcher.events.get(timeout=WAIT_S), Delivery):
        pass
    watcher.stop()
    return json.loads(event.payload)


def check_recovery(running: Running, broker, mend: Callable[[], None], why: str) -> None:
    """See the answers kept, mend what is broken, and see later samples offloaded and answered."""
    running.until("device standing", 3)
    state = state_of(broker)
    assert why in state["problems"][0] and state["counters"]["unspooled"] > 0
    mend()
    running.until("cloud final", 3)
    code, summary, err = running.end()
    run = summary["run"]
    unspooled = [ln for ln in running.lines if why in ln.get("reason", "")]
    assert code == 7 and len(unspooled) == run["unspooled"] == run["standing"]
    assert run["frames"] == run["unspooled"] + run["offloaded"]
    assert (run["lost"], run["offloaded"] - run["answered"]) == (0, run["pending"])
    notices = err[: err.index("edge-kit: error:")]
    assert notices.count(why) == 1 and notices.count("nothing can be offloaded") == 1
    assert notices.count("the spool works again") == 1


def test_disk_full_at_start_is_answered_locally_until_there_is_room(
    edge, mosquitto, worker, many, mounted
):
    (mounted / "other").write_bytes(bytes(256 << 10))
    args = ("--json", "--broker", mosquitto.url, "--fps", "10", "--linger", "0")
    child = edge(*args, "--spool", str(mounted / "spool.db"), source=many)
    check_recovery(Running(child), mosquitto, (mounted / "other").unlink, "is full")


def test_read_only_folder_is_answered_locally_until_it_can_be_written(
    edge, mosquitto, worker, many, mounted
):
    def remount(how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(mounted)], check=True)

    remount("ro")
    args = ("--json", "--broker", mosquitto.url, "--fps", "10", "--linger", "0")
    child = edge(*args, "--spool", str(mounted / "spool.db"), source=many)
    check_recovery(Running(child), mosquitto, lambda: remount("rw"), "Read-only file system")


def test_folder_that_cannot_be_made_is_answered_locally_until_it_can(
    edge, mosquitto, worker, many, tmp_path
):
    (tmp_path / "state").write_text("a file where the folder belongs")
    args = ("--json", "--broker", mosquitto.url, "--fps", "10", "--linger", "0")
    child = edge(*args, "--spool", str(tmp_path / "state" / "spool.db"), source=many)
    check_recovery(Running(child), mosquitto, (tmp_path / "state").unlink, "cannot be made")


def test_file_that_cannot_grow_at_start_is_answered_locally_until_it_can(
    edge, mosquitto, worker, many
):
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    args = ("--json", "--broker", mosquitto.url, "--fps", "10", "--linger", "0")
    finish(edge("--json", "--limit", "1"))  # engines are tried, and the answer is stored
    child = edge(*args, source=many, preexec_fn=no_room)

    def mend() -> None:
        resource.prlimit(child.pid, resource.RLIMIT_FSIZE, UNLIMITED)

    check_recovery(Running(child), mosquitto, mend, "cannot open the spool")


def test_disk_that_fills_up_keeps_what_it_has_and_answers_the_rest_locally(
    edge, mosquitto, many, tmp_path
):
    def small_files() -> None:  # SQLite's index of its log alone takes 32 KiB
        resource.setrlimit(resource.RLIMIT_FSIZE, (48_000, 48_000))

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


def test_spool_damaged_at_start_is_put_aside_and_the_run_goes_on(edge, mosquitto, worker, tmp_path):
    (tmp_path / "spool.db").write_bytes(os.urandom(8192))
    before = (tmp_path / "spool.db").read_bytes()
    code, lines, err = finish(edge("--json", "--broker", mosquitto.url))
    run = lines[-1]["summary"]["run"]
    assert code == 0 and "was damaged: it was put aside" in err
    assert run["answered"] == run["offloaded"] > 0 and run["lost"] == 0
    (aside,) = tmp_path.glob("spool.db.corrupt-*")
    assert aside.read_bytes() == before


def test_spool_damaged_while_running_is_put_aside_and_the_run_goes_on(
    edge, mosquitto, worker, many, tmp_path
):
    args = ("--json", "--broker", mosquitto.url, "--fps", "10", "--linger", "0")
    running = Running(edge(*args, source=many))
    running.until("cloud final", 3)
    spoil(tmp_path / "spool.db")
    running.until("device standing")
    running.until("cloud final", 3)
    _code, summary, err = running.end()
    run, files = summary["run"], list(tmp_path.glob("spool.db.corrupt-*"))
    assert err.count("was damaged: it was put aside") == len(files) == 1
    assert summary["total"]["damaged"] == 1 and run["answered"] >= 6
    # Each frame has an answer that will not be followed by another, or waits for one.
    last = {index: kind[-1] for index, kind in kinds(running.lines).items()}
    waiting = list(last.values()).count("device provisional")
    assert waiting == run["pending"] + run["lost"]


def test_spool_of_another_process_ends_the_start(edge, mosquitto):
    first = edge("--json", "--broker", mosquitto.url, "--fps", "1")
    first.stdout.readline()
    code, lines, err = finish(edge("--json", "--broker", mosquitto.url))
    assert (code, lines) == (7, []) and "another edge-kit uses the spool" in err


def test_spool_of_a_newer_edge_kit_ends_the_start(edge, tmp_path):
    Spool(tmp_path / "spool.db").close()
    with sqlite3.connect(tmp_path / "spool.db") as db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    db.close()
    code, lines, err = finish(edge(*NOBODY))
    assert (code, lines) == (7, []) and "was written by a newer edge-kit" in err
