"""Stock systems, customized and booted in QEMU: ``make image-test``.

Four minutes each on two idle cores, and five for making each stock system.
STOCK_BOOKWORM and STOCK_TRIXIE name images that tests/support/boards/raspios.py has made before.
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

from boards.emulator.boot import start
from boards.emulator.listener import DeviceListener
from boards.image.hook import LOG, PAYLOAD, SCRIPT
from boards.onboard.settings import FILE
from tests.support.boards.emulated import ASSETS, BUNDLE, Board, reach, worker
from tests.support.boards.raspios import make_raspios
from tests.support.boards.shell import Shell, make_key
from tests.support.boards.stock import DISK_ID, run
from tests.support.mosquitto import Mosquitto, free_port

pytestmark = pytest.mark.image

STOCK = {
    "bookworm": os.environ.get("STOCK_BOOKWORM"),
    "trixie": os.environ.get("STOCK_TRIXIE"),
}
# Three boots, with the payload unpacked in between; a machine with other work takes long.
_BOOT_S = 2400
_MARK = "==="
_SHOW = "systemctl show --value"
LOOKS = {
    "service": f"echo $({_SHOW} edge-kit -p ActiveState; {_SHOW} edge-kit -p NRestarts;"
    f"{_SHOW} edge-kit -p User; {_SHOW} edge-kit -p ProtectSystem)",
    "system": ". /etc/os-release; echo $VERSION_CODENAME",
    "line": "cat /boot/firmware/cmdline.txt",
    "booted": "cat /proc/cmdline",
    "files": "ls -A /boot/firmware",
    "log": f"cat /boot/firmware/{LOG}",
    "public": f"cat /boot/firmware/{FILE}",
    "name": "hostname",
    "kept name": "cat /etc/hostname",
    "zone": "readlink /etc/localtime",
    "radio": "nmcli radio wifi",
    "rfkill": "cat /sys/module/rfkill/parameters/default_state",
    "wifi": "cat /etc/NetworkManager/system-connections/edge-kit*",
    "ssh": "systemctl is-enabled ssh",
    "finished": "journalctl -u edge-kit -o cat --no-pager | grep -cF '[cloud,'",
    "dialogue": f"{_SHOW} userconfig -p ActiveState",
}
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
    listener = DeviceListener(broker.port)
    log = folder / "console.log"
    try:
        with (
            worker(broker.port),
            start(out, "virt", print, log=log, ssh=shell.port, journal=True) as guest,
        ):
            out.unlink()
            board = Board(guest, shell, listener)
            board.until(reach(shell), "SSH lets us in", _BOOT_S)
            yield board
    finally:
        listener.close()


def look(board: Board) -> dict[str, str]:
    """What the board tells of itself, all in one login."""
    script = "".join(f"echo '{_MARK}{name}'\n{command}\n" for name, command in LOOKS.items())
    parts = board.shell.run(script, timeout_s=600).split(_MARK)[1:]
    return {name: text.strip() for name, _, text in (part.partition("\n") for part in parts)}


def serves(board: Board, codename: str, engine: str) -> None:
    """The service classifies and is answered, and the first start has left what it should."""
    board.until(lambda: board.listener.answers >= 5, "five answers of the worker", _BOOT_S)
    assert board.listener.status["engine"] == engine
    assert re.fullmatch("edge-[0-9a-f]{16}", board.listener.device)
    told = look(board)
    assert told["service"] == "active 0 edge-kit strict"
    assert told["system"] == codename
    assert int(told["finished"]) > 0  # an answer can be a refusal
    # The boot partition holds neither hook nor payload nor secret, and tells what was done.
    assert "systemd.run" not in told["line"] and DISK_ID not in told["line"]
    assert "\n" not in told["line"] and "systemd.run" not in told["booted"]
    assert PAYLOAD not in told["files"] and SCRIPT not in told["files"]
    assert "edge-kit is installed" in told["log"] and "failed" not in told["log"]
    assert "workshop" in told["public"] and "country" in told["public"]
    assert "hunter2" not in told["public"] and "a long secret" not in told["public"]
    # The system's own habits did not undo ours.
    assert told["name"] == told["kept name"] == "cam-" + board.listener.device.removeprefix("edge-")
    assert told["zone"].endswith("Europe/Lisbon")
    assert told["radio"] == "enabled" and told["rfkill"] == "1"
    assert "psk=a long secret" in told["wifi"]
    assert told["ssh"] == "enabled" and told["dialogue"] == "activating"
    console = board.guest.console()
    assert "done: configure the service" in console and "failed:" not in console


@pytest.mark.parametrize(
    ("codename", "engine", "restarts"),
    [("bookworm", "onnx", 2), ("bookworm", "tflite", 2), ("trixie", "tflite", 1)],
)
def test_customized_system_installs_itself_and_is_answered(
    stock, tmp_path, make_mosquitto, codename, engine, restarts
):
    """Bookworm restarts once for its own first start, and both once for ours."""
    with customized(stock(codename), tmp_path, make_mosquitto(), engine) as board:
        serves(board, codename, engine)
        assert board.guest.restarts == restarts


def test_board_with_a_damaged_payload_comes_up_and_says_why(stock, tmp_path, make_mosquitto):
    """Two thirds of the payload: what opens network and shell comes first in it."""
    cut = f"""
        mcopy -n -i {{fat}} ::/{PAYLOAD} {tmp_path}/whole
        truncate -s $(($(stat -c %s {tmp_path}/whole) * 2 / 3)) {tmp_path}/whole
        mcopy -o -i {{fat}} {tmp_path}/whole ::/{PAYLOAD}
    """
    with customized(stock("bookworm"), tmp_path, make_mosquitto(), "onnx", cut) as board:
        told = look(board)
        assert "failed: unpack edge-kit: " in told["log"]
        assert "write the card again" in told["log"]
        assert "systemd.run" not in told["line"] and "hunter2" not in told["public"]
        assert board.guest.restarts == 2 and not board.listener.device
