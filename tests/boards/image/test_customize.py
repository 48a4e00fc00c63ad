from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from boards.emulator.boot import boot_files, settings_of
from boards.image import customize as module
from boards.image.customize import customize, look_at
from boards.image.hook import HOOK, LOG, PAYLOAD, SCRIPT
from boards.image.wheels import Wheel
from boards.onboard.settings import FILE, Settings
from edge_kit.errors import ImageError, UsageError
from tests.support.boards.stock import CMDLINE, DISK_ID, make_stock, run, tools

pytestmark = tools
SETTINGS = Settings.parse("[secrets]\nbroker_password = 'hunter2'\n[run]\ncamera = 'auto'\n")


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """One wheel that is there already; what asked for it."""
    path = tmp_path / "numpy.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("numpy/__init__.py", "version = 'the wheel'\n")
    asked: list[str] = []

    def fetch(python: str, _cache: Path, _report: object) -> list[Wheel]:
        asked.append(python)
        return [Wheel("numpy", "1", "0" * 64, path)]

    monkeypatch.setattr(module, "fetch_wheels", fetch)
    monkeypatch.setattr("edge_kit.bundle.Bundle.end_files", lambda *_a: ())
    return asked


def from_fat(image: Path, name: str, out: Path) -> bytes:
    run("mcopy", "-n", "-o", "-i", f"{image}@@{4 << 20}", f"::/{name}", out / "read")
    return (out / "read").read_bytes()


@pytest.mark.parametrize(("codename", "python"), [("bookworm", "3.11"), ("trixie", "3.13")])
def test_payload_goes_onto_the_boot_partition(tiny_bundle, tmp_path, wheels, codename, python):
    stock = make_stock(tmp_path, codename)
    before = stock.read_bytes()
    out = tmp_path / "new/edge.img"
    customize(stock, tiny_bundle, SETTINGS, out, tmp_path, lambda _text: None)
    assert stock.read_bytes() == before and wheels == [python]
    line = from_fat(out, "cmdline.txt", tmp_path).decode()
    assert line.startswith(f"{CMDLINE} systemd.run=/boot/firmware/{SCRIPT} ")
    assert line.count("\n") == 1
    assert Settings.parse(from_fat(out, FILE, tmp_path).decode()) == SETTINGS
    assert from_fat(out, "config.txt", tmp_path) == b"camera_auto_detect=1\n"
    # The Linux partition was not touched.
    assert out.read_bytes()[52 << 20 :] == before[52 << 20 :]
    run("fsck.vfat", "-n", extracted(out, tmp_path))
    assert [p.name for p in out.parent.iterdir()] == ["edge.img"]


def extracted(image: Path, folder: Path) -> Path:
    part = folder / "part.fat"
    part.write_bytes(image.read_bytes()[4 << 20 : 52 << 20])
    return part


class Board:
    """A root directory and a boot partition on which the first start's script runs for real.

    Systemd's tools are recorded; one of them may fail.
    """

    def __init__(self, image: Path, folder: Path) -> None:
        self.boot, self.root, self._bin = (folder / n for n in ("boot", "onboard", "bin"))
        self._calls = folder / "calls"
        for place in (self.boot, self.root / "etc/modprobe.d", self._bin):
            place.mkdir(parents=True)
        for name in (PAYLOAD, SCRIPT, FILE, "cmdline.txt"):
            (self.boot / name).write_bytes(from_fat(image, name, folder))
        for tool in ("systemd-sysusers", "systemd-tmpfiles", "systemctl", "chown", "sync"):
            self.tool(tool, f'echo {tool} "$@" >> {self._calls}')
        self.tool("rfkill", "true")

    def tool(self, name: str, body: str) -> None:
        (self._bin / name).write_text(f"#!/bin/sh\n{body}\n")
        (self._bin / name).chmod(0o755)

    def start(self) -> int:
        script = (self.boot / SCRIPT).read_text()
        script = script.replace("root=\nboot=/boot/firmware\n", "")
        script = script.replace("--no-overwrite-dir", "--no-overwrite-dir --no-same-owner")
        env = {"PATH": f"{self._bin}:/usr/bin:/bin", "root": str(self.root), "boot": str(self.boot)}
        return subprocess.run(["sh", "-c", script], env=env, check=False, timeout=60).returncode

    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()

    def log(self) -> str:
        return (self.boot / LOG).read_text()

    def has(self, name: str) -> bool:
        return (self.root / name).exists()


@pytest.fixture
def board(tiny_bundle, tmp_path, wheels):
    out = tmp_path / "edge.img"
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "one.jpg").write_bytes(b"photo")
    customize(make_stock(tmp_path), tiny_bundle, SETTINGS, out, tmp_path, print, photos)
    return Board(out, tmp_path)


def test_first_start_installs_everything_and_removes_itself(board):
    assert board.start() == 0
    assert board.has("usr/lib/edge-kit/site-packages/numpy/__init__.py")
    assert board.has("usr/lib/edge-kit/site-packages/edge_kit/cli.py")
    assert (board.root / "usr/lib/edge-kit/backoff").stat().st_mode & 0o777 == 0o755
    assert board.has("var/lib/edge-kit/bundles/current/manifest.json")
    assert (board.root / "var/lib/edge-kit/photos/one.jpg").read_bytes() == b"photo"
    assert "systemctl enable ssh.service" in board.calls()
    enabled = " ".join(call for call in board.calls() if call.startswith("systemctl enable"))
    assert "edge-kit.service" in enabled and "edge-kit-firstboot.service" in enabled
    owned = [call for call in board.calls() if call.startswith("chown")]
    assert len(owned) == 2 and all("root:edge-kit" in call for call in owned)
    assert (board.boot / "cmdline.txt").read_text() == CMDLINE + "\n"
    assert sorted(p.name for p in board.boot.iterdir()) == sorted(["cmdline.txt", FILE, LOG])
    assert "failed" not in board.log() and "edge-kit is installed" in board.log()
    # No Wi-Fi was asked for: the radio stays as it was.
    assert not board.has("var/lib/NetworkManager")


def test_first_start_unblocks_the_radio_for_wifi(board):
    wifi = "[wifi]\nssid = 'workshop'\npassword = 'long enough'\ncountry = 'PT'\n"
    (board.boot / FILE).write_text(Settings.parse(wifi).whole())
    saved = board.root / "var/lib/systemd/rfkill/platform-3f300000.mmcnr:wlan"
    saved.parent.mkdir(parents=True)
    saved.write_text("1\n")
    assert board.start() == 0
    state = (board.root / "var/lib/NetworkManager/NetworkManager.state").read_text()
    assert state == "[main]\nNetworkingEnabled=true\nWirelessEnabled=true\n"
    options = (board.root / "etc/modprobe.d/zz-edge-kit-rfkill.conf").read_text()
    assert options == "options rfkill default_state=1\n"
    assert saved.read_text() == "0\n"


def test_failed_step_does_not_stop_the_first_start(board):
    board.tool("systemd-sysusers", "echo no space left >&2; exit 1")
    assert board.start() == 0
    assert (board.boot / "cmdline.txt").read_text() == CMDLINE + "\n"
    assert "failed: make its user: no space left" in board.log()
    assert "not everything worked: make its user;" in board.log()
    # What is needed to try again is still there, and trying again works.
    board.tool("systemd-sysusers", "true")
    assert board.start() == 0
    assert "edge-kit is installed" in board.log() and not (board.boot / PAYLOAD).exists()


def test_damaged_payload_still_installs_the_first_boot(board):
    whole = (board.boot / PAYLOAD).read_bytes()
    (board.boot / PAYLOAD).write_bytes(whole[: len(whole) * 2 // 3])
    assert board.start() == 0
    assert "failed: unpack edge-kit: " in board.log()
    assert board.has("usr/lib/edge-kit/firstboot/boards/onboard/firstboot.py")
    assert board.has("etc/systemd/system/edge-kit-firstboot.service")
    assert not board.has("var/lib/edge-kit/bundles/current/manifest.json")
    assert (board.boot / "cmdline.txt").read_text() == CMDLINE + "\n"


def test_hook_that_cannot_be_removed_does_not_restart_the_board(board):
    board.tool("sed", "echo read-only file system >&2; exit 4")
    assert board.start() != 0  # systemd.run_failure_action=none: no restart
    assert "systemctl --no-block start multi-user.target" in board.calls()
    assert "the card cannot be written" in board.log()


def test_stock_systems_first_start_and_ours_share_the_command_line(board):
    """As raspberrypi-sys-mods edits the line: its init, `quiet` and the disk id."""
    text = (board.boot / "cmdline.txt").read_text()
    assert text == f"{CMDLINE} {HOOK}\n"
    edited = text.replace(" init=/usr/lib/raspberrypi-sys-mods/firstboot", "")
    edited = edited.replace(" quiet", "").replace(DISK_ID, "0badcafe")
    (board.boot / "cmdline.txt").write_text(edited.rstrip() + " cfg80211.ieee80211_regdom=PT\n")
    assert board.start() == 0
    left = (board.boot / "cmdline.txt").read_text()
    assert "systemd." not in left and left.endswith("rootwait cfg80211.ieee80211_regdom=PT\n")


@pytest.mark.parametrize(
    "words",
    [
        # Raspberry Pi Imager's, for Bookworm.
        "systemd.run=/boot/firstrun.sh systemd.run_success_action=reboot "
        "systemd.unit=kernel-command-line.target",
        "systemd.unit=rescue.target",
    ],
)
def test_image_with_another_first_start_is_refused(tiny_bundle, tmp_path, wheels, words):
    stock = make_stock(tmp_path, line=f"{CMDLINE} {words}")
    with pytest.raises(UsageError, match=r"first start of its own: .*systemd\.") as caught:
        customize(stock, tiny_bundle, SETTINGS, tmp_path / "edge.img", tmp_path, print)
    assert "as downloaded" in str(caught.value.hint)
    assert not (tmp_path / "edge.img").exists()


def test_customized_image_boots_with_its_own_files_and_line(tiny_bundle, tmp_path, wheels):
    stock, out = make_stock(tmp_path), tmp_path / "edge.img"
    for name, data in (("kernel8.img", b"Linux version 6.1.0-40-arm64 (x)"), ("initramfs8", b"i"),
                       ("bcm2710-rpi-3-b.dtb", b"tree")):  # fmt: skip
        (tmp_path / name).write_bytes(data)
        run("mcopy", "-i", f"{stock}@@{4 << 20}", tmp_path / name, "::/")
    with pytest.raises(ImageError, match=r"edge-kit\.toml is missing"):
        settings_of(stock, tmp_path)
    customize(stock, tiny_bundle, SETTINGS, out, tmp_path, print)
    for tree in ("", "bcm2837-rpi-3-b.dtb"):
        assert boot_files(out, tmp_path, tree) == f"{CMDLINE} {HOOK}\n"
    assert (tmp_path / "vmlinuz").read_bytes().startswith(b"Linux version")
    assert (tmp_path / "initrd.img").read_bytes() == b"i"
    assert (tmp_path / "bcm2837-rpi-3-b.dtb").read_bytes() == b"tree"


def test_payload_is_owned_by_root_and_reproducible(tiny_bundle, tmp_path, wheels):
    made = module.fetch_wheels("3.11", tmp_path, print)
    first = module.payload(tiny_bundle, SETTINGS, made, tmp_path / "a")
    assert module.payload(tiny_bundle, SETTINGS, made, tmp_path / "b") == first
    with tarfile.open(fileobj=io.BytesIO(first), mode="r:xz") as archive:
        for member in archive:
            assert (member.uid, member.gid) == (0, 0) and not member.name.startswith("/")
            assert not member.mode & 0o022 or member.issym()


def test_unknown_system_is_refused(tiny_bundle, tmp_path, wheels):
    (tmp_path / "a").mkdir()
    with pytest.raises(ImageError, match="holds buster"):
        look_at(make_stock(tmp_path / "a", "buster"))
    (tmp_path / "b").mkdir()
    with pytest.raises(ImageError, match="32-bit"):
        look_at(make_stock(tmp_path / "b", arch="arm"))
    empty = tmp_path / "empty.img"
    empty.write_bytes(bytes(1 << 20))
    with pytest.raises(ImageError, match=r"sfdisk failed|no partitions"):
        look_at(empty)


def test_customized_image_and_overwriting_are_refused(tiny_bundle, tmp_path, wheels):
    stock, out = make_stock(tmp_path), tmp_path / "edge.img"
    with pytest.raises(UsageError, match="end it with"):
        odd = tmp_path / "edge.zip"
        customize(stock, tiny_bundle, SETTINGS, odd, tmp_path, lambda _text: None)
    with pytest.raises(UsageError, match="overwrite"):
        customize(stock, tiny_bundle, SETTINGS, stock, tmp_path, lambda _text: None)
    customize(stock, tiny_bundle, SETTINGS, out, tmp_path, lambda _text: None)
    with pytest.raises(UsageError, match="before"):
        customize(out, tiny_bundle, SETTINGS, tmp_path / "2.img", tmp_path, lambda _text: None)
    assert not (tmp_path / "2.img").exists()


def test_full_boot_partition_is_an_error_and_leaves_no_image(
    tiny_bundle, tmp_path, wheels, monkeypatch
):
    monkeypatch.setattr(module, "payload", lambda *_a: os.urandom(50 << 20))
    out = tmp_path / "new/edge.img"
    with pytest.raises(ImageError, match=r"48 MiB\) does not take 51 MiB"):
        customize(make_stock(tmp_path), tiny_bundle, SETTINGS, out, tmp_path, lambda _text: None)
    assert list(out.parent.iterdir()) == []


CUSTOMIZE = """
import sys, tempfile, time
from pathlib import Path
from boards.commands import customize as module
from edge_kit.cli import main

def slowly(image, bundle, settings, out, *rest):
    with tempfile.TemporaryDirectory(prefix=".image-", dir=out.parent) as name:
        (Path(name) / "edge.img").touch()
        time.sleep(300)

module.customize_image = slowly
module.Bundle.open = staticmethod(lambda path: None)
sys.argv[1:1] = ["image", "customize"]
sys.exit(main())
"""


def test_terminated_customization_leaves_nothing(tmp_path):
    config, image, out = tmp_path / "device.toml", tmp_path / "stock.img", tmp_path / "out"
    config.touch()
    image.touch()
    out.mkdir()
    words = [image, "--bundle", "b", "--config", config, "--out", out / "edge.img"]
    child = subprocess.Popen([sys.executable, "-c", CUSTOMIZE, *map(str, words)])
    try:
        deadline = time.monotonic() + 60
        while not list(out.glob(".image-*/edge.img")):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) != 0
    finally:
        child.kill()
    assert list(Path(out).iterdir()) == []
