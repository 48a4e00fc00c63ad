"""An image booted in QEMU for tests: its broker and worker on this machine, a shell inside."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from boards.emulator.boot import Guest, start
from boards.emulator.listener import DeviceListener
from boards.image.partitions import partitions
from boards.onboard.settings import FILE, Settings
from boards.system.tool import call
from tests.support.boards.shell import Shell, make_key
from tests.support.mosquitto import free_port

__all__ = ["ASSETS", "BUNDLE", "Board", "build", "emulated", "reach", "settings_text"]

ASSETS = Path(__file__).parents[3] / "edge_kit/demo/assets"
BUNDLE = ASSETS / "clothing.ekb"
BOOT_S = 900
_CONFIG = """
[system]
hostname = "cam-{serial}"
timezone = "Europe/Lisbon"
"""
_RUN: dict[str, object] = {
    "source": "/var/lib/edge-kit/photos",
    "broker": "mqtt://10.0.2.2:1883",
    "linger": 120,
    "json": True,
}
_PROGRAM = "import sys; from cloud_kit.cli import main; sys.exit(main())"


def settings_text(key: str = "", tables: str = "", **run: object) -> str:
    """The device's settings.

    Args:
        key: Whose owner SSH lets in.
        tables: More keys of ``[system]``, and more tables.
        run: More keys of ``[run]``.
    """
    text = _CONFIG + (f'ssh_keys = ["{key}"]\n' if key else "") + tables + "\n[run]\n"
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in (_RUN | run).items())
    return Settings.parse(text).whole()


def build(folder: Path, *more: str) -> Path:
    """Build the image for Raspberry Pi 3 with the shipped bundle and photos."""
    folder.mkdir(exist_ok=True)
    (folder / "device.toml").write_text(settings_text())
    out = folder / "edge.img.xz"
    command = [sys.executable, "-m", "edge_kit.cli", "image", "build", "--board", "pi3"]
    command += ["--bundle", str(BUNDLE), "--config", str(folder / "device.toml")]
    command += ["--photos", str(ASSETS / "photos"), "--out", str(out), *more]
    subprocess.run(command, check=True)
    return out


@dataclass
class Board:
    """A booted image.

    Attributes:
        guest: The emulator.
        shell: Root on it.
        listener: Hears what it says to the broker.
    """

    guest: Guest
    shell: Shell
    listener: DeviceListener

    def come_online(self) -> None:
        """Wait until the device has said that it is there, and SSH lets us in."""
        self.until(lambda: bool(self.listener.device), "the device is online")
        self.until(reach(self.shell), "SSH lets us in")

    def until(self, happened: Callable[[], bool], what: str, within_s: float = BOOT_S) -> None:
        """Wait for something; a guest that died, or said nothing of it in time, fails the test."""
        deadline = time.monotonic() + within_s
        while not happened():
            self.guest.check()
            assert time.monotonic() < deadline, (
                f"not in time: {what}\n{self.guest.console()[-3000:]}"
            )
            self.listener.changed.wait(1)
            self.listener.changed.clear()

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit, as systemd tells them."""
        told = self.shell.run(f"systemctl show {unit} -p {','.join(names)}")
        return dict(line.split("=", 1) for line in told.splitlines())

    def finished(self) -> bool:
        """Whether the service has seen all photos and ended."""
        if self.listener.online:
            return False  # each login costs an emulated board seconds
        state = self.show("edge-kit", "ActiveState", "Result", "NRestarts")
        assert state["Result"] == "success" and state["NRestarts"] == "0", state
        return state["ActiveState"] == "inactive"

    def lines(self, since: str = "") -> list[dict[str, Any]]:
        """What the service wrote to the journal: a result a line, then the summary."""
        after = f"--after-cursor='{since}'" if since else ""
        told = self.shell.run(f"journalctl -u edge-kit -o cat --no-pager {after}")
        return [json.loads(line) for line in told.splitlines() if line.startswith("{")]

    def cursor(self) -> str:
        """Where the service's journal ends now."""
        told = self.shell.run("journalctl -u edge-kit -n 1 -o cat --show-cursor --no-pager")
        return told.rsplit("-- cursor: ", 1)[1].strip()

    def written(self) -> dict[str, int]:
        """Bytes that the card's partitions took since the boot, by mount point."""
        told = self.shell.run(
            "sync; lsblk -rno NAME,MOUNTPOINT | while read -r name place; do "
            '[ -z "$place" ] || echo "$place $(cat /sys/class/block/$name/stat)"; done'
        )
        rows = [line.split() for line in told.splitlines()]
        return {row[0]: 512 * int(row[7]) for row in rows}

    def configure(self, **run: object) -> None:
        """Change keys of ``[run]`` on the boot partition, and take them as a boot would."""
        place = f"/boot/firmware/{FILE}"
        settings = Settings.parse(self.shell.run(f"cat {place}"))
        changed = replace(settings, run={**settings.run, **run})
        self.shell.run(f"cat > {place}", stdin=changed.whole())
        self.shell.run("systemctl restart edge-kit-firstboot", timeout_s=300)


@contextmanager
def worker(port: int) -> Iterator[None]:
    """A worker on this machine."""
    command = [sys.executable, "-c", _PROGRAM, "worker", "--bundle", str(BUNDLE)]
    command += ["--broker", f"mqtt://127.0.0.1:{port}"]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        child.terminate()
        child.wait(30)


def reach(shell: Shell) -> Callable[[], bool]:
    """Whether SSH lets us in by now."""

    def try_it() -> bool:
        done = subprocess.run(
            [*shell.command(), "true"], capture_output=True, timeout=120, check=False
        )
        return done.returncode == 0

    return try_it


@contextmanager
def emulated(
    image: Path, machine: str, folder: Path, port: int, tables: str = "", **run: object
) -> Iterator[Board]:
    """Boot a copy of an image, with a worker on this machine; `Board.come_online` waits for it.

    Args:
        image: Unpacked; it stays as it is.
        machine: QEMU's.
        folder: An empty directory.
        port: Of a broker on loopback that wants neither TLS nor names.
        tables: See `settings_text`.
        run: More keys of ``[run]``; by default the device takes the same broker.
    """
    folder.mkdir(parents=True, exist_ok=True)
    raw, key, reached = folder / "raw.img", folder / "key", free_port()
    call(["cp", "--sparse=always", image, raw])
    run = {"broker": f"mqtt://10.0.2.2:{port}"} | run
    (folder / FILE).write_text(settings_text(make_key(key), tables, **run))
    call(["mcopy", "-o", "-i", f"{raw}@@{partitions(raw)[0].start}", folder / FILE, "::/"])
    listener, log = DeviceListener(port), folder / "console.log"
    try:
        with (
            worker(port),
            start(raw, machine, print, log=log, ssh=reached, journal=True) as guest,
        ):
            yield Board(guest, Shell(reached, key), listener)
    finally:
        listener.close()
