"""The first boot: from settings to a configured board."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from boards.onboard.firstboot import DATA, device_serial
from boards.onboard.settings import Settings
from edge_kit.device.config import resolve
from tests.support.boards.freshboard import KEY, PEM, TEXT, Board


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "root")


def test_first_boot_sets_name_zone_and_keys(board):
    assert board.boot().failed == [] and board.worked
    assert board.read("etc/hostname") == "cam-10000000abcdef12\n"
    assert "127.0.1.1\tcam-10000000abcdef12" in board.read("etc/hosts")
    assert "old" not in board.read("etc/hosts")
    assert str((board.root / "etc/localtime").readlink()) == "/usr/share/zoneinfo/Europe/Lisbon"
    assert board.read("root/.ssh/authorized_keys").splitlines()[1:] == [KEY]
    assert board.mode("root/.ssh/authorized_keys") == 0o600
    assert "ssh-keygen -A" in board.ran


def test_data_partition_grows_to_fill_the_card(board):
    board.boot()
    assert board.ran[:4] == [
        "findmnt --noheadings --output SOURCE,TARGET --target /var/lib/edge-kit",
        "sfdisk --no-reread --force -N 3 /dev/mmcblk0 < ', +\\n'",
        "partx --update --nr 3 /dev/mmcblk0",
        "resize2fs /dev/mmcblk0p3",
    ]


def test_system_without_a_data_partition_boots(board):
    board.mounted = "/dev/mmcblk0p2 /\n"
    assert board.boot().failed == [] and board.worked
    assert not [line for line in board.ran if line.startswith(("sfdisk", "partx", "resize2fs"))]


def test_wifi_keyfile_is_readable_by_root_only(board):
    board.boot()
    place = "etc/NetworkManager/system-connections/edge-kit-wifi.nmconnection"
    text = board.read(place)
    name = ";".join(str(b) for b in b"Werk; Halle 2") + ";"
    assert f"\nssid={name}\n" in text and "\npsk=\\sgeheim\\\\ß!\n" in text
    assert board.mode(place) == 0o600
    assert "ieee80211_regdom=DE" in board.read("etc/modprobe.d/edge-kit-wifi.conf")


def test_time_servers_are_set_and_removed(board):
    place = "etc/systemd/timesyncd.conf.d/edge-kit.conf"
    restart = "systemctl --no-block try-restart systemd-timesyncd.service"
    board.boot()
    assert not (board.root / place).exists() and restart not in board.ran
    text = board.settings.read_text(encoding="utf-8")
    board.settings.write_text(text.replace("[system]", "[system]\nntp = ['10.0.2.2', 'ntp.lan']"))
    assert board.boot().failed == [] and restart in board.ran
    assert board.read(place) == "[Time]\nNTP=10.0.2.2 ntp.lan\nFallbackNTP=\n"
    assert Settings.parse(board.settings.read_text(encoding="utf-8")).ntp == ("10.0.2.2", "ntp.lan")
    board.settings.write_text(text)
    assert board.boot().failed == [] and restart in board.ran
    assert not (board.root / place).exists()


@pytest.mark.parametrize(
    ("run", "waits", "tries"),
    [
        ('broker = "mqtts://b"', True, True),
        ('broker = "mqtt://b"', False, True),
        ('broker = "mqtts://b"\nwait_for_clock = false\nkeep_trying = false', False, False),
        ("", None, None),
    ],
)
def test_board_with_tls_waits_for_its_clock_unless_set_otherwise(run, waits, tries, tmp_path):
    board = Board(tmp_path / "root", text=f"[run]\n{run}\n")
    board.boot()
    config = tomllib.loads(board.read("etc/edge-kit/device.toml"))
    assert (config.get("wait_for_clock"), config.get("keep_trying")) == (waits, tries)


def test_enrolment_removed_from_the_settings_is_forgotten(tmp_path):
    wanted = "[tls]\nenroll = 'https://est.lan/.well-known/est/boards'\n"
    secret = "[secrets]\nenroll_user = 'u'\nenroll_password = 'p4ss'\n"
    board = Board(tmp_path / "root", text=wanted + secret)
    assert board.boot().failed == []
    asked = tomllib.loads(board.read("etc/edge-kit/enroll.toml"))
    assert asked == {
        "server": "https://est.lan/.well-known/est/boards", "name": "edge-10000000abcdef12"
    }  # fmt: skip
    board.settings.write_text("[system]\n", encoding="utf-8")
    assert board.boot().failed == []
    assert not list(board.root.glob("etc/edge-kit/enroll*"))


def test_written_configuration_is_valid_for_the_device(board, tmp_path):
    board.boot()
    text = board.read("etc/edge-kit/device.toml")
    here = tmp_path / "device.toml"
    here.write_text(text.replace('"/', f'"{board.root}/'))
    config = resolve({}, {}, here)
    assert config.device_id == "edge-10000000abcdef12"
    assert config.broker == "mqtts://cam@broker.example" and config.fps == 2
    assert config.bundle == board.root / "var/lib/edge-kit/bundles/current"
    assert config.spool == board.root / "var/lib/edge-kit/spool/spool.db"
    assert config.tls_ca == board.root / "var/lib/edge-kit/tls/ca.pem" and config.tls_ca.exists()
    assert config.tls_cert is None  # it is still asked for
    assert config.address is not None and config.address.password == 'h"unter2'
    assert board.mode("etc/edge-kit/broker-password") == 0o640


def test_key_made_on_the_board_has_a_request(board):
    board.boot()
    request = board.root / "boot/firmware/edge-kit-request.csr"
    told = subprocess.run(
        ["openssl", "req", "-in", request, "-noout", "-verify", "-subject", "-pubkey"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert "CN = edge-10000000abcdef12" in told.stdout
    key = board.root / DATA / "tls/device.key"
    own = subprocess.run(
        ["openssl", "pkey", "-in", key, "-pubout"], check=True, capture_output=True, text=True
    )
    assert own.stdout in told.stdout and board.mode(f"{DATA}/tls/device.key") == 0o640
    assert "PRIVATE" not in request.read_text()


def test_boot_without_the_data_partition_is_repeated_with_it(board):
    """Certificates are named to the service again once they are there again."""
    board.write("etc/fstab", "LABEL=EDGEDATA /var/lib/edge-kit ext4 noatime,nofail 0 2\n")
    board.boot()
    before = board.read("etc/edge-kit/device.toml")
    hidden = board.root / "elsewhere"
    (board.root / DATA).rename(hidden)
    mounted, board.mounted = board.mounted, "/dev/mmcblk0p2 /\n"
    assert board.boot().failed == ["grow the data partition"]
    shutil.rmtree(board.root / DATA)
    hidden.rename(board.root / DATA)
    board.mounted = mounted
    assert board.boot().failed == [] and board.ran
    assert board.read("etc/edge-kit/device.toml") == before and "tls_ca" in before


def test_new_system_beside_old_data_is_set_up_again(tmp_path):
    """Name and network are on the root partition: the data cannot tell that they are set."""
    board = Board(tmp_path / "root", text="[system]\nhostname = 'cam'\n")
    board.boot()
    shutil.rmtree(board.root / "etc")
    board.write("etc/hosts", "")
    assert board.boot().failed == [] and board.read("etc/hostname") == "cam\n"


def test_later_boot_does_nothing_unless_settings_were_edited(board):
    board.boot()
    board.boot()
    assert board.worked and board.ran == []
    certificate = board.settings.read_text(encoding="utf-8").replace(
        "generate_key", f"certificate = '''{PEM}'''\ngenerate_key"
    )
    board.settings.write_text(certificate, encoding="utf-8")
    board.boot()
    config = tomllib.loads(board.read("etc/edge-kit/device.toml"))
    assert config["tls_cert"].endswith("device.crt") and config["tls_key"].endswith("device.key")
    # What had been removed from the boot partition is still in force.
    assert config["password_file"] == "/etc/edge-kit/broker-password"
    wifi = "etc/NetworkManager/system-connections/edge-kit-wifi.nmconnection"
    assert "psk=" in board.read(wifi)


def test_keys_and_networks_removed_from_the_settings_are_removed(board):
    """Somebody whose key was taken out must not get in, and an old network is not joined."""
    pem = TEXT.replace("generate_key", f"certificate = '''{PEM}'''\ngenerate_key")
    board.settings.write_text(pem, encoding="utf-8")
    assert board.boot().failed == []
    assert (board.root / DATA / "tls/device.crt").exists()
    board.settings.write_text("[run]\nbroker = 'mqtt://b'\n", encoding="utf-8")
    assert board.boot().failed == []
    assert not (board.root / "root/.ssh/authorized_keys").exists()
    assert not list((board.root / "etc/NetworkManager/system-connections").iterdir())
    assert sorted(f.name for f in (board.root / DATA / "tls").iterdir()) == ["device.key"]


def test_ssh_keys_of_somebody_else_stay(tmp_path):
    board = Board(tmp_path / "root", text="[system]\n")
    board.write("root/.ssh/authorized_keys", f"{KEY}\n")
    assert board.boot().failed == []
    assert board.read("root/.ssh/authorized_keys") == f"{KEY}\n"


def test_broker_without_tls_gets_no_certificates(board, tmp_path):
    board.settings.write_text(TEXT.replace("mqtts:", "mqtt:"), encoding="utf-8")
    assert board.boot().failed == []
    here = tmp_path / "device.toml"
    here.write_text(board.read("etc/edge-kit/device.toml").replace('"/', f'"{board.root}/'))
    assert resolve({}, {}, here).address is not None


def test_invalid_settings_still_make_host_keys(tmp_path, caplog):
    board = Board(tmp_path / "root", text="[system]\nhostnme = 'x'\n")
    assert board.boot().failed == ["read the settings"]
    assert "unknown key system.hostnme" in caplog.text and "ssh-keygen -A" in board.ran


def test_serial_comes_from_the_firmware_or_the_machine_id(tmp_path):
    board = Board(tmp_path / "pi")
    assert device_serial(board.root) == "10000000abcdef12"
    for name, machine in (("a", "1" * 32), ("b", "2" * 32)):
        (tmp_path / name / "etc").mkdir(parents=True)
        (tmp_path / name / "etc/machine-id").write_text(machine + "\n")
    first, second = device_serial(tmp_path / "a"), device_serial(tmp_path / "b")
    assert first != second and len(first) == 16 and "1" * 16 not in first
    zeros = Board(tmp_path / "zeros", serial="0000000000000000")
    zeros.write("etc/machine-id", "1" * 32)
    assert device_serial(zeros.root) == first
