"""Stock systems, customized and booted in QEMU. Ten minutes each: ``make image-test``.

STOCK_BOOKWORM and STOCK_TRIXIE name images that tests/raspios.py has made before.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from boards.image.answer import Ear
from boards.image.boot import start
from boards.image.hook import LOG, PAYLOAD, SCRIPT
from boards.image.shell import Shell, free_port, make_key
from boards.payload.settings import FILE
from tests.emulated import ASSETS, BUNDLE, Board, reach, worker
from tests.mosquitto import Mosquitto
from tests.raspios import make_raspios
from tests.stock import DISK_ID, run

pytestmark = pytest.mark.image

STOCK = {
    "bookworm": os.environ.get("STOCK_BOOKWORM"),
    "trixie": os.environ.get("STOCK_TRIXIE"),
}
# Three boots, with the payload unpacked in between; a machine with other work takes long.
_BOOT_S = 2400
CONFIG = """
[system]
hostname = "cam-{{serial}}"
timezone = "Europe/Lisbon"
ssh_keys = ["{key}"]
[wifi]
ssid = "workshop"
password = "a long secret"
country = "PT"
[secrets]
broker_password = "hunter2"
[run]
source = "/var/lib/edge-kit/photos"
fps = 2
broker = "mqtt://cam@10.0.2.2:{port}"
engine = "{engine}"
target_offload = 0.5
"""


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory):
    """Give a stock image by its codename, made once."""
    made: dict[str, Path] = {}

    def give(codename: str) -> Path:
        if codename not in made:
            given = STOCK.get(codename)
            out = tmp_path_factory.mktemp(codename) / "stock.img"
            made[codename] = Path(given) if given else make_raspios(codename, out)
        return made[codename]

    return give


@contextmanager
def customized(
    stock: Path, folder: Path, broker: Mosquitto, engine: str, damage: str = ""
) -> Iterator[Board]:
    """Customize an image with the command, boot it, and wait until its shell answers."""
    shell = Shell(free_port(), folder / "key")
    config, out = folder / "device.toml", folder / "edge.img"
    config.write_text(CONFIG.format(key=make_key(shell.key), port=broker.port, engine=engine))
    command = [sys.executable, "-m", "edge_kit.cli", "image", "customize", str(stock)]
    command += ["--bundle", str(BUNDLE), "--config", str(config), "--out", str(out)]
    subprocess.run([*command, "--photos", str(ASSETS / "photos")], check=True)
    if damage:
        run("bash", "-c", damage.format(fat=f"{out}@@{4 << 20}"))
    ear = Ear(broker.port)
    log = folder / "console.log"
    try:
        with (
            worker(broker.port),
            start(out, "virt", print, log=log, ssh=shell.port, journal=True) as guest,
        ):
            out.unlink()
            board = Board(guest, shell, ear)
            board.until(reach(shell), "SSH lets us in", _BOOT_S)
            yield board
    finally:
        ear.close()


@pytest.mark.parametrize(
    ("codename", "engine", "restarts"),
    [("bookworm", "onnx", 2), ("bookworm", "tflite", 2), ("trixie", "tflite", 1)],
)
def test_a_customized_system_installs_itself_and_serves(
    stock, tmp_path, make_mosquitto, codename, engine, restarts
):
    """Bookworm restarts once for its own first start, and both once for ours."""
    with customized(stock(codename), tmp_path, make_mosquitto(), engine) as board:
        board.until(lambda: board.ear.answers >= 5, "five answers of the worker", _BOOT_S)
        assert board.guest.restarts == restarts
        assert board.ear.status["engine"] == engine
        assert re.fullmatch("edge-[0-9a-f]{16}", board.ear.device)
        tell = board.shell.run
        state = board.show("edge-kit", "ActiveState", "NRestarts", "User", "ProtectSystem")
        assert state == {
            "ActiveState": "active", "NRestarts": "0", "User": "edge-kit",
            "ProtectSystem": "strict",
        }  # fmt: skip
        assert tell("grep ^VERSION_CODENAME= /etc/os-release").strip().endswith(codename)
        # The boot partition holds neither hook nor payload nor secret, and tells what was done.
        line = tell("cat /boot/firmware/cmdline.txt")
        assert "systemd." not in line and DISK_ID not in line and line.count("\n") == 1
        assert "systemd." not in tell("cat /proc/cmdline").replace("systemd.journald", "")
        names = tell("ls -A /boot/firmware").split()
        assert PAYLOAD not in names and SCRIPT not in names
        told = tell(f"cat /boot/firmware/{LOG}")
        assert "edge-kit is installed" in told and "failed" not in told
        public = tell(f"cat /boot/firmware/{FILE}")
        assert "workshop" in public and "hunter2" not in public and "a long secret" not in public
        # The system's own habits did not undo ours.
        assert tell("hostname").strip() == "cam-" + board.ear.device.removeprefix("edge-")
        assert tell("cat /etc/hostname") == tell("hostname")
        assert tell("readlink /etc/localtime").strip().endswith("Europe/Lisbon")
        assert tell("nmcli radio wifi").strip() == "enabled"
        assert tell("cat /sys/module/rfkill/parameters/default_state").strip() == "1"
        assert "psk=a long secret" in tell("cat /etc/NetworkManager/system-connections/edge-kit*")
        assert tell("systemctl is-enabled ssh").strip() == "enabled"
        assert tell("systemctl show userconfig -p ActiveState").strip().endswith("activating")
        console = board.guest.console()
        assert "done: configure the service" in console and "failed:" not in console


def test_a_board_whose_payload_is_damaged_comes_up_and_says_why(stock, tmp_path, make_mosquitto):
    """Two thirds of the payload: what opens network and shell comes first in it."""
    cut = f"""
        mcopy -n -i {{fat}} ::/{PAYLOAD} {tmp_path}/whole
        truncate -s $(($(stat -c %s {tmp_path}/whole) * 2 / 3)) {tmp_path}/whole
        mcopy -o -i {{fat}} {tmp_path}/whole ::/{PAYLOAD}
    """
    with customized(stock("bookworm"), tmp_path, make_mosquitto(), "onnx", cut) as board:
        told = board.shell.run(f"cat /boot/firmware/{LOG}")
        assert "failed: unpack edge-kit: " in told and "write the card again" in told
        assert "systemd.run" not in board.shell.run("cat /boot/firmware/cmdline.txt")
        assert board.guest.restarts == 2 and not board.ear.device
