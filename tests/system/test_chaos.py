"""Everything dies while running; every sample ends with exactly one counted result."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_kit.bundle import Bundle
from tests.support.mosquitto import Mosquitto
from tests.support.tiny import SIZE

pytestmark = [pytest.mark.broker, pytest.mark.slow]

BIN = Path(sys.executable).parent
SECONDS = 22.0
FPS = 12
DRAIN_S = 90.0
# When what is hit, seconds after the first frame. Three of the four ends are kill -9.
SCHEDULE = [
    (2.0, "kill worker"),
    (3.5, "kill device"),
    (4.5, "freeze worker"),
    (6.0, "kill broker"),
    (8.0, "kill worker"),
    (9.5, "kill device"),
    (11.0, "kill broker"),
    (13.0, "kill worker"),
    (15.0, "thaw worker"),
    (17.0, "kill worker"),
]


class Fleet:
    """A broker, two devices and three workers as processes of their own."""

    def __init__(self, root: Path, broker: Mosquitto, bundle: Bundle) -> None:
        self.root = root
        self.broker = broker
        self.bundle = bundle
        self.workers: list[subprocess.Popen[bytes]] = []
        self.devices: list[subprocess.Popen[bytes]] = []
        self.frozen: subprocess.Popen[bytes] | None = None
        self.kills: Counter[str] = Counter()
        self.starts: Counter[str] = Counter()
        self.until = 0.0
        photos(root / "photos")

    def _spawn(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        self.starts[name] += 1
        stem = self.root / f"{name}.{self.starts[name]}"
        with stem.with_suffix(f"{stem.suffix}.out").open("wb") as out:
            err = out if name.startswith("worker") else subprocess.DEVNULL
            return subprocess.Popen(command, stdout=out, stderr=err, env=ENV)

    def worker(self, index: int) -> subprocess.Popen[bytes]:
        command = [str(BIN / "cloud-kit"), "worker", "--bundle", str(self.bundle.root)]
        command += ["--broker", self.broker.url, "--threads", "1", "--batch", "8", "--json"]
        return self._spawn(f"worker{index}", command)

    def device(self, index: int) -> subprocess.Popen[bytes]:
        left = max(1, int((self.until - time.monotonic()) * FPS))
        command = [str(BIN / "edge-kit"), "run", str(self.bundle.root), "--threshold", "-1"]
        command += ["--source", str(self.root / "photos"), "--fps", str(FPS), "--live", "--json"]
        command += ["--broker", self.broker.url, "--device-id", f"cam-{index}", "--engine", "onnx"]
        command += ["--spool", str(self.spool(index)), "--resend-s", "1", "--threads", "1"]
        command += ["--limit", str(left), "--linger", str(DRAIN_S)]
        return self._spawn(f"device{index}", command)

    def spool(self, index: int) -> Path:
        return self.root / f"cam-{index}.db"

    def outcomes(self, index: int) -> list[dict]:
        """All results of a device, over all of its lives; a life may end in half a line."""
        lines: list[dict] = []
        for life in range(1, self.starts[f"device{index}"] + 1):
            for line in (self.root / f"device{index}.{life}.out").read_text().splitlines():
                try:
                    lines.append(json.loads(line))
                except json.JSONDecodeError:
                    continue
        return [line for line in lines if "sample" in line]

    def start(self) -> None:
        self.workers = [self.worker(i) for i in range(3)]
        self.until = time.monotonic() + SECONDS
        self.devices = [self.device(i) for i in range(2)]

    def hit(self, what: str) -> None:
        verb, kind = what.split()
        if kind == "broker":
            self.broker.restart()
            self.kills[kind] += 1
        elif verb == "freeze":
            self.frozen = self.workers[0]
            self.frozen.send_signal(signal.SIGSTOP)
        elif verb == "thaw":
            assert self.frozen is not None
            assert self.frozen.poll() is None
            self.frozen.send_signal(signal.SIGCONT)
            self.frozen = None
        else:
            self._kill(kind)

    def _kill(self, kind: str) -> None:
        group = self.workers if kind == "worker" else self.devices
        # A frozen worker stays frozen: that is another way to fail.
        alive = [i for i, p in enumerate(group) if p is not self.frozen]
        index = alive[self.kills[kind] % len(alive)]
        assert group[index].poll() is None, f"{kind} {index} had ended by itself"
        group[index].kill()
        group[index].wait(30)
        self.kills[kind] += 1
        group[index] = self.worker(index) if kind == "worker" else self.device(index)

    def end(self) -> None:
        for process in [*self.workers, *self.devices]:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(30)


ENV = os.environ | {"OMP_NUM_THREADS": "1"}


def photos(root: Path) -> None:
    """Write as many small photos as one life of a device can play."""
    root.mkdir()
    rng = np.random.default_rng(5)
    kinds = []
    for index in range(6):
        pixels = np.full((SIZE, SIZE, 3), 30, np.uint8)
        pixels[..., index % 3] = rng.integers(120, 255)
        path = root / f"0000-{index}.png"
        Image.fromarray(pixels).save(path)
        kinds.append(path.read_bytes())
    for index in range(int(SECONDS * FPS) + 1):
        (root / f"{index:05d}.png").write_bytes(kinds[index % len(kinds)])


@pytest.fixture
def fleet(tmp_path, make_mosquitto, tiny_bundle):
    made = Fleet(tmp_path, make_mosquitto(), tiny_bundle)
    try:
        yield made
    finally:
        made.end()


def counted(spool: Path) -> tuple[dict[str, int], int]:
    """Return the counters of a spool and how many samples it still holds."""
    db = sqlite3.connect(f"file:{spool}?mode=ro", uri=True)
    try:
        counters = dict(db.execute("SELECT name, value FROM counter"))
        return counters, db.execute("SELECT count(*) FROM sample").fetchone()[0]
    finally:
        db.close()


def test_every_sample_ends_with_one_counted_result_whatever_is_killed(fleet):
    fleet.start()
    begin = time.monotonic()
    for at, what in SCHEDULE:
        time.sleep(max(0.0, begin + at - time.monotonic()))
        fleet.hit(what)
    for device in fleet.devices:
        assert device.wait(SECONDS + DRAIN_S) == 0
    assert fleet.kills == {"worker": 4, "device": 2, "broker": 2}

    for index in range(2):
        counters, left = counted(fleet.spool(index))
        assert left == 0, counters
        assert counters["offloaded"] == counters["answered"]
        assert counters["offloaded"] > SECONDS * FPS / 4  # it did work in between
        assert not any(counters.get(how) for how in ("refused", "evicted", "expired"))

        results = fleet.outcomes(index)
        finals = Counter(r["sample"] for r in results if r["tier"] == "cloud")
        offered = {r["sample"] for r in results if r["status"] == "provisional"}
        kills = fleet.starts[f"device{index}"] - 1
        assert len(finals) == counters["answered"]
        assert offered <= set(finals)
        # An answer is printed at once and counted within moments. Killed in between, a device
        # prints it again in its next life, under the same id: at most a window full, once a kill.
        assert finals.total() - len(finals) <= 16 * kills
    assert fleet.workers[0].poll() is None  # the one that was frozen and came back
