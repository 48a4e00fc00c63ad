"""Secrets leave the boot partition, and a power cut costs no settings."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from boards.onboard.firstboot import DATA, DONE
from boards.onboard.settings import FILE, Settings
from tests.support.boards.freshboard import PEM, Board


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "root")


def test_secrets_leave_the_boot_partition_and_the_rest_stays(board):
    board.boot()
    left = board.settings.read_text(encoding="utf-8")
    assert "geheim" not in left and "unter2" not in left
    assert Settings.parse(left).ssid == "Werk; Halle 2" and Settings.parse(left).ca == PEM
    assert not list(board.root.rglob("*.new"))


def test_secrets_stay_until_every_step_has_worked(board):
    board.breaks = "openssl req"
    assert board.boot().failed == ["place keys and certificates"] and not board.worked
    assert "geheim" in board.settings.read_text(encoding="utf-8")
    assert not (board.root / DONE).exists()
    key = board.read(f"{DATA}/tls/device.key")
    board.breaks = ""
    assert board.boot().failed == []
    assert board.read(f"{DATA}/tls/device.key") == key  # made once
    assert "geheim" not in board.settings.read_text(encoding="utf-8")


class PowerCut(BaseException):
    """No step may catch it, as none survives one."""


@pytest.mark.parametrize("at", range(8))
def test_power_cut_while_removing_secrets_keeps_the_settings(board, monkeypatch, at):
    """The card is cut off at each flush of it, whose data is lost; the next boot does the rest."""
    boot, flush = board.root / "boot/firmware", os.fsync
    seen = 0

    def cut(handle: int) -> None:
        nonlocal seen
        file = Path(f"/proc/self/fd/{handle}").readlink()
        if (file.parent == boot and "csr" not in file.name) or (file == boot and seen):
            seen += 1
            if seen == at + 1:
                raise PowerCut
        flush(handle)

    monkeypatch.setattr(os, "fsync", cut)
    with pytest.raises(PowerCut):
        board.boot()
    monkeypatch.setattr(os, "fsync", flush)
    assert board.boot().failed == [] and board.worked
    left = Settings.parse(board.settings.read_text(encoding="utf-8"))
    assert left.ssid == "Werk; Halle 2" and left.run["fps"] == 2 and not left.has_secrets
    assert board.read("etc/hostname") == "cam-10000000abcdef12\n"
    assert "fps" in board.read("etc/edge-kit/device.toml")
    assert "psk=" in board.read("etc/NetworkManager/system-connections/edge-kit-wifi.nmconnection")
    assert [f.name for f in sorted(boot.iterdir())] == ["edge-kit-request.csr", FILE]


@pytest.mark.parametrize("size", [0, 100, 700])
def test_settings_emptied_by_a_checker_come_back(board, size):
    public = "[run]\nfps = 1\n"
    ready = board.root / "boot/firmware/edge-kit-public.toml"
    ready.write_text(public + "#" * size)
    board.settings.write_text("")
    assert board.boot().failed == []
    assert "fps = 1" in board.read("etc/edge-kit/device.toml") and not ready.exists()


def test_settings_edited_after_a_power_cut_are_used(board):
    (board.root / "boot/firmware/edge-kit-public.toml").write_text("[run]\nfps = 1\n")
    assert board.boot().failed == []
    assert "fps = 2" in board.read("etc/edge-kit/device.toml")


def test_half_overwritten_settings_are_not_used(board, monkeypatch):
    ready = board.root / "boot/firmware/edge-kit-public.toml"
    ready.write_text("[run]\nfps = 1\n")
    board.settings.write_text("#" * 700)

    plain = Path.open

    def refuse(self: Path, mode: str = "r", **more: Any) -> Any:
        if mode == "r+b":
            raise OSError(30, "Read-only file system")
        return plain(self, mode, **more)

    monkeypatch.setattr(Path, "open", refuse)
    assert board.boot().failed == ["remove secrets from the boot partition"]
    assert not (board.root / "etc/edge-kit/device.toml").exists()


def test_board_without_its_data_partition_keeps_its_secrets(board):
    """Files placed below an empty mount point are hidden once the partition is mounted."""
    board.write("etc/fstab", "LABEL=EDGEDATA /var/lib/edge-kit ext4 noatime,nofail 0 2\n")
    board.mounted = "/dev/mmcblk0p2 /\n"
    assert board.boot().failed == ["grow the data partition"] and not board.worked
    assert "geheim" in board.settings.read_text(encoding="utf-8")
    assert board.read("etc/hostname") == "cam-10000000abcdef12\n"
    board.mounted = "/dev/mmcblk0p3 /var/lib/edge-kit\n"
    assert board.boot().failed == []
    assert "geheim" not in board.settings.read_text(encoding="utf-8")


def test_camera_address_leaves_the_boot_partition_and_stays_in_force(tmp_path):
    text = "[run]\ncamera = 'rtsp://eye:s3cret@cam.lan/1?token=t0ken'\n"
    board = Board(tmp_path / "root", text=text)

    def camera() -> str:
        return tomllib.loads(board.read("etc/edge-kit/device.toml"))["camera"]

    for _ in range(2):
        assert board.boot().failed == []
        assert camera() == "rtsp://eye:s3cret@cam.lan/1?token=t0ken"
        left = board.settings.read_text()
        assert Settings.parse(left).run["camera"] == "***"
        assert "s3cret" not in left and "eye" not in left and "t0ken" not in left
        board.settings.write_text(f"{left}fps = 1\n")
    board.settings.write_text(left.replace("***", "auto"))
    assert board.boot().failed == [] and camera() == "auto"
