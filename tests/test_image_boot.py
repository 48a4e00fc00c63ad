"""Whole images, built and booted. Minutes each: ``make image-test``.

EDGE_KIT_IMAGE names an image that is built already (its configuration as `CONFIG`, on any board but
qemu-virt) and saves the first build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from boards.image.answer import Ear
from boards.image.boot import start, unpack_xz
from boards.image.partitions import partitions
from boards.payload.settings import FILE, Settings
from tests.mosquitto import Mosquitto
from tests.stock import run

pytestmark = pytest.mark.image

ASSETS = Path(__file__).parents[1] / "edge_kit/demo/assets"
BUNDLE = ASSETS / "clothing.ekb"
CONFIG = """
[system]
hostname = "cam-{serial}"
timezone = "Europe/Lisbon"
[run]
source = "/var/lib/edge-kit/photos"
fps = 2
broker = "mqtt://10.0.2.2:1883"
target_offload = 0.5
"""
BOOT_S = 900
_WORKER = "import sys; from cloud_kit.cli import main; sys.exit(main())"


def build(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "device.toml").write_text(CONFIG)
    out = folder / "edge.img.xz"
    command = [sys.executable, "-m", "edge_kit.cli", "image", "build", "--board", "pi3"]
    command += ["--bundle", str(BUNDLE), "--config", str(folder / "device.toml")]
    command += ["--photos", str(ASSETS / "photos"), "--out", str(out)]
    subprocess.run(command, check=True)
    return out


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("EDGE_KIT_IMAGE")
    return Path(given) if given else build(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def raw(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("raw") / "edge.img"
    unpack_xz(image, out)
    return out


def test_two_builds_are_the_same_image(image, tmp_path):
    again = build(tmp_path / "again")
    for suffix in ("", ".bmap", ".sbom.json", ".sha256"):
        assert Path(f"{again}{suffix}").read_bytes() == Path(f"{image}{suffix}").read_bytes()


def test_file_systems_are_sound_and_hold_no_keys(raw, tmp_path):
    boot, root, data = partitions(raw)
    for part, check in ((boot, ("fsck.vfat", "-n")), (root, ("e2fsck", "-fn")),
                        (data, ("e2fsck", "-fn"))):  # fmt: skip
        out = tmp_path / "part"
        with raw.open("rb") as source, out.open("wb") as target:
            source.seek(part.start)
            for _ in range(part.size >> 20):
                target.write(source.read(1 << 20))
        run(*check, out)
    listing = run("debugfs", "-R", "ls -p /etc/ssh", f"{raw}?offset={root.start}")
    assert "sshd_config" in listing and "ssh_host_" not in listing
    assert run("debugfs", "-R", "cat /etc/machine-id", f"{raw}?offset={root.start}") == ""


@pytest.mark.parametrize(
    ("machine", "engine"), [("virt", "onnx"), ("virt", "tflite"), ("raspi3b", "onnx")]
)
def test_it_boots_classifies_and_gets_its_doubtful_photos_answered(
    raw, tmp_path, make_mosquitto, machine, engine
):
    broker: Mosquitto = make_mosquitto()
    copy = tmp_path / "edge.img"
    shutil.copyfile(raw, copy)
    text = CONFIG.replace(":1883", f":{broker.port}") + f'engine = "{engine}"\n'
    (tmp_path / FILE).write_text(Settings.parse(text).whole())
    run("mcopy", "-o", "-i", f"{copy}@@{partitions(copy)[0].start}", tmp_path / FILE, "::/")
    command = [sys.executable, "-c", _WORKER, "worker", "--bundle", str(BUNDLE)]
    command += ["--broker", f"mqtt://127.0.0.1:{broker.port}"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ear = Ear(broker.port)
    log = tmp_path / "console.log"
    deadline = time.monotonic() + BOOT_S
    try:
        with start(copy, machine, print, log=log, journal=True) as guest:
            while ear.answers < 5:
                guest.check()
                assert time.monotonic() < deadline, guest.console()[-3000:]
                ear.heard.wait(1)
                ear.heard.clear()
    finally:
        ear.close()
        worker.terminate()
        worker.wait(30)
    assert ear.status["engine"] == engine
    assert ear.device.startswith("edge-") and len(ear.device) == 5 + 16
    console = log.read_text(encoding="utf-8", errors="replace")
    assert "done: grow the data partition" in console and "failed:" not in console
