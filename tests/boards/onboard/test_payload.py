from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from boards.onboard.firstboot import DATA, DONE, FirstBoot, device_serial
from boards.onboard.place import FILES
from boards.onboard.programs import call
from boards.onboard.settings import FILE, Settings, without_secrets
from edge_kit.device.config import resolve
from edge_kit.masking import mask_address as masked

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGsS0mfh6lHq4bq3l0xS4m4mVTlYqJZ1A8c1VHdU6mBO me@desk"
PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
TEXT = f"""
[system]
hostname = "cam-{{serial}}"
timezone = "Europe/Lisbon"
ssh_keys = ["{KEY}"]
[wifi]
ssid = "Werk; Halle 2"
password = " geheim\\\\ß!"
country = "DE"
[tls]
ca = '''{PEM}'''
generate_key = true
[secrets]
broker_password = "h\\"unter2"
[run]
camera = "auto"
fps = 2
broker = "mqtts://cam@broker.example"
"""


class Board:
    """A root directory and the programs that would have run on it; openssl runs for real."""

    def __init__(self, root: Path, text: str = TEXT, serial: str = "10000000abcdef12\0") -> None:
        self.root = root
        self.ran: list[str] = []
        self.breaks = ""
        self.mounted = "/dev/mmcblk0p3 /var/lib/edge-kit\n"
        (root / "boot/firmware").mkdir(parents=True)
        self.settings.write_text(text, encoding="utf-8")
        self.write("proc/device-tree/serial-number", serial)
        self.write("etc/hosts", "127.0.0.1 localhost\n127.0.1.1 old\n")
        self.write("usr/share/zoneinfo/Europe/Lisbon", "TZif")
        self.write("sys/devices/mmc/mmcblk0/mmcblk0p3/partition", "3\n")
        (root / "sys/class/block").mkdir(parents=True)
        link = root / "sys/class/block/mmcblk0p3"
        link.symlink_to(root / "sys/devices/mmc/mmcblk0/mmcblk0p3")

    @property
    def settings(self) -> Path:
        return self.root / "boot/firmware" / FILE

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")

    def read(self, name: str) -> str:
        return (self.root / name).read_text(encoding="utf-8")

    def mode(self, name: str) -> int:
        return (self.root / name).stat().st_mode & 0o777

    def run(self, *words: object, stdin: str | None = None) -> str:
        line = " ".join(map(str, words)) + (f" < {stdin!r}" if stdin else "")
        self.ran.append(line)
        if self.breaks and self.breaks in line:
            raise OSError("broken on purpose")
        if words[0] == "findmnt":
            return self.mounted
        if words[0] == "openssl":
            return call(*words, stdin=stdin)
        return ""

    def boot(self) -> FirstBoot:
        self.ran.clear()
        first = FirstBoot(self.root, self.run)
        self.worked = first()
        return first


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path / "root")


def test_the_first_boot_makes_a_board_itself(board):
    assert board.boot().failed == [] and board.worked
    assert board.read("etc/hostname") == "cam-10000000abcdef12\n"
    assert "127.0.1.1\tcam-10000000abcdef12" in board.read("etc/hosts")
    assert "old" not in board.read("etc/hosts")
    assert str((board.root / "etc/localtime").readlink()) == "/usr/share/zoneinfo/Europe/Lisbon"
    assert board.read("root/.ssh/authorized_keys").splitlines()[1:] == [KEY]
    assert board.mode("root/.ssh/authorized_keys") == 0o600
    assert "ssh-keygen -A" in board.ran


def test_the_data_partition_grows_into_the_card(board):
    board.boot()
    assert board.ran[:4] == [
        "findmnt --noheadings --output SOURCE,TARGET --target /var/lib/edge-kit",
        "sfdisk --no-reread --force -N 3 /dev/mmcblk0 < ', +\\n'",
        "partx --update --nr 3 /dev/mmcblk0",
        "resize2fs /dev/mmcblk0p3",
    ]


def test_a_system_without_a_data_partition_grows_none_and_is_done(board):
    board.mounted = "/dev/mmcblk0p2 /\n"
    assert board.boot().failed == [] and board.worked
    assert not [line for line in board.ran if line.startswith(("sfdisk", "partx", "resize2fs"))]


def test_wifi_is_a_keyfile_that_only_root_reads(board):
    board.boot()
    place = "etc/NetworkManager/system-connections/edge-kit-wifi.nmconnection"
    text = board.read(place)
    name = ";".join(str(b) for b in b"Werk; Halle 2") + ";"
    assert f"\nssid={name}\n" in text and "\npsk=\\sgeheim\\\\ß!\n" in text
    assert board.mode(place) == 0o600
    assert "ieee80211_regdom=DE" in board.read("etc/modprobe.d/edge-kit-wifi.conf")


def test_time_servers_are_named_to_timesyncd_and_to_nobody_when_they_are_gone(board):
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
def test_a_board_waits_for_its_clock_unless_told_otherwise(run, waits, tries, tmp_path):
    board = Board(tmp_path / "root", text=f"[run]\n{run}\n")
    board.boot()
    config = tomllib.loads(board.read("etc/edge-kit/device.toml"))
    assert (config.get("wait_for_clock"), config.get("keep_trying")) == (waits, tries)


def test_an_enrolment_that_is_no_longer_wanted_is_forgotten(tmp_path):
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


def test_the_written_configuration_is_one_that_the_device_takes(board, tmp_path):
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


def test_a_key_is_made_on_the_board_and_asks_for_its_certificate(board):
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


def test_a_request_is_named_after_the_device(board):
    board.settings.write_text("[tls]\ngenerate_key = true\n[run]\ndevice_id = 'cam-7'\n")
    assert board.boot().failed == []
    told = call("openssl", "req", "-noout", "-subject",
                "-in", board.root / "boot/firmware/edge-kit-request.csr")  # fmt: skip
    assert told == "subject=CN = cam-7\n"


def test_secrets_leave_the_boot_partition_and_the_rest_stays(board):
    board.boot()
    left = board.settings.read_text(encoding="utf-8")
    assert "geheim" not in left and "unter2" not in left
    assert Settings.parse(left).ssid == "Werk; Halle 2" and Settings.parse(left).ca == PEM
    assert not list(board.root.rglob("*.new"))


def test_secrets_stay_until_all_that_needs_them_has_worked(board):
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
def test_a_power_cut_while_secrets_are_removed_costs_no_settings(board, monkeypatch, at):
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


def test_a_name_that_leads_to_nothing_after_a_power_cut_costs_no_settings(board, monkeypatch):
    ready, read = board.root / "boot/firmware/edge-kit-public.toml", Path.read_bytes
    ready.write_text("[run]\nfps = 1\n")

    def lost(path: Path) -> bytes:
        if path == board.settings and ready.exists():
            raise OSError(5, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", lost)
    assert board.boot().failed == []
    assert "fps = 1" in board.read("etc/edge-kit/device.toml") and not ready.exists()


@pytest.mark.parametrize("size", [0, 100, 700])
def test_a_file_that_a_checker_emptied_comes_back(board, size):
    public = "[run]\nfps = 1\n"
    ready = board.root / "boot/firmware/edge-kit-public.toml"
    ready.write_text(public + "#" * size)
    board.settings.write_text("")
    assert board.boot().failed == []
    assert "fps = 1" in board.read("etc/edge-kit/device.toml") and not ready.exists()


def test_settings_edited_after_a_power_cut_are_taken(board):
    (board.root / "boot/firmware/edge-kit-public.toml").write_text("[run]\nfps = 1\n")
    assert board.boot().failed == []
    assert "fps = 2" in board.read("etc/edge-kit/device.toml")


def test_a_boot_partition_that_turns_read_only_half_way_is_not_taken_for_settings(
    board, monkeypatch
):
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


@pytest.mark.parametrize("name", ["device.csr", "device.key.new", "ca.pem", "given.crt"])
def test_links_among_keys_lead_root_nowhere(board, name):
    board.write("etc/victim", "mine\n")
    tls = board.root / DATA / "tls"
    tls.mkdir(parents=True)
    (tls / name).symlink_to(board.root / "etc/victim")
    assert board.boot().failed == []
    assert board.read("etc/victim") == "mine\n" and board.mode("etc/victim") != 0o640
    assert not (tls / name).is_symlink()


def test_a_link_instead_of_the_directory_of_keys_is_not_followed(board):
    (board.root / "etc/victim").mkdir()
    (board.root / DATA).mkdir(parents=True)
    (board.root / DATA / "tls").symlink_to(board.root / "etc/victim")
    assert board.boot().failed == []
    assert not list((board.root / "etc/victim").iterdir())
    assert (board.root / DATA / "tls/device.key").exists()


def test_only_root_may_put_something_beside_the_keys(board):
    """Who owns a directory can put links into it, and what root writes there goes elsewhere."""
    board.boot()
    first = next(n for n, line in enumerate(board.ran) if line.startswith("openssl"))
    assert f"chown root:edge-kit {board.root / DATA}" in board.ran[:first]
    assert board.mode(DATA) == 0o750
    rules = (FILES / "tmpfiles.conf").read_text()
    assert "d /var/lib/edge-kit 0750 root edge-kit -" in rules
    # systemd gives all of a StateDirectory= to the service's user.
    unit = (FILES / "edge-kit.service").read_text()
    assert "\nStateDirectory=edge-kit/spool\n" in unit


def test_a_key_that_a_power_cut_left_empty_is_made_again(board):
    board.write(f"{DATA}/tls/device.key", "")
    assert board.boot().failed == []
    assert "PRIVATE KEY" in board.read(f"{DATA}/tls/device.key")


def test_without_its_data_partition_a_board_keeps_its_secrets(board):
    """What is placed below an empty mount point is hidden once the partition is mounted."""
    board.write("etc/fstab", "LABEL=EDGEDATA /var/lib/edge-kit ext4 noatime,nofail 0 2\n")
    board.mounted = "/dev/mmcblk0p2 /\n"
    assert board.boot().failed == ["grow the data partition"] and not board.worked
    assert "geheim" in board.settings.read_text(encoding="utf-8")
    assert board.read("etc/hostname") == "cam-10000000abcdef12\n"
    board.mounted = "/dev/mmcblk0p3 /var/lib/edge-kit\n"
    assert board.boot().failed == []
    assert "geheim" not in board.settings.read_text(encoding="utf-8")


def test_new_data_beside_an_old_system_get_their_authorities_and_key(board):
    board.boot()
    shutil.rmtree(board.root / DATA)
    assert board.boot().failed == []
    assert sorted(f.name for f in (board.root / DATA / "tls").iterdir()) == ["ca.pem", "device.key"]


def test_a_boot_that_misses_its_data_partition_is_made_up_for(board):
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


def test_a_new_name_asks_by_a_new_request(tmp_path):
    text = "[tls]\nenroll = 'https://est.lan/.well-known/est'\n"
    board = Board(tmp_path / "root", text=text)
    request = board.root / DATA / "tls/enroll.csr"
    board.boot()
    for run, stays in (("[run]\nfps = 1\n", True), ("[run]\ndevice_id = 'cam'\n", False)):
        request.write_text("asked")
        board.settings.write_text(text + run)
        assert board.boot().failed == [] and request.exists() is stays


def test_a_new_system_beside_old_data_is_set_up_again(tmp_path):
    """Name and network lie on the root partition; that they are set is no fact of the data."""
    board = Board(tmp_path / "root", text="[system]\nhostname = 'cam'\n")
    board.boot()
    shutil.rmtree(board.root / "etc")
    board.write("etc/hosts", "")
    assert board.boot().failed == [] and board.read("etc/hostname") == "cam\n"


def test_later_boots_do_nothing_unless_the_settings_were_edited(board):
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


def test_what_the_settings_do_not_name_any_more_is_gone(board):
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


def test_keys_that_somebody_else_let_in_stay(tmp_path):
    board = Board(tmp_path / "root", text="[system]\n")
    board.write("root/.ssh/authorized_keys", f"{KEY}\n")
    assert board.boot().failed == []
    assert board.read("root/.ssh/authorized_keys") == f"{KEY}\n"


def test_a_broker_without_tls_gets_no_certificates_which_the_device_would_refuse(board, tmp_path):
    board.settings.write_text(TEXT.replace("mqtts:", "mqtt:"), encoding="utf-8")
    assert board.boot().failed == []
    here = tmp_path / "device.toml"
    here.write_text(board.read("etc/edge-kit/device.toml").replace('"/', f'"{board.root}/'))
    assert resolve({}, {}, here).address is not None


def test_another_country_is_taken_though_the_password_is_gone(board):
    board.boot()
    place = "etc/NetworkManager/system-connections/edge-kit-wifi.nmconnection"
    before = board.read(place)
    text = board.settings.read_text(encoding="utf-8")
    board.settings.write_text(text.replace('"DE"', '"PT"'), encoding="utf-8")
    assert board.boot().failed == []
    assert "ieee80211_regdom=PT" in board.read("etc/modprobe.d/edge-kit-wifi.conf")
    assert board.read(place) == before and "psk=" in before


def test_a_cameras_password_leaves_the_boot_partition_and_stays_in_force(tmp_path):
    text = "[run]\ncamera = 'rtsp://eye:s3cret@cam.lan/1?token=t0ken'\n"
    board = Board(tmp_path / "root", text=text)

    def camera() -> str:
        return tomllib.loads(board.read("etc/edge-kit/device.toml"))["camera"]

    for _ in range(2):
        assert board.boot().failed == []
        assert camera() == "rtsp://eye:s3cret@cam.lan/1?token=t0ken"
        left = board.settings.read_text()
        assert "s3cret" not in left and "eye" not in left and "t0ken" not in left
        board.settings.write_text(f"{left}fps = 1\n")
    board.settings.write_text(left.replace("/1", "/2"))
    assert board.boot().failed == ["configure the service"]
    assert camera().endswith("/1?token=t0ken")


@pytest.mark.parametrize(
    "address",
    ["rtsp://u:p@c/1?a=b", "rtsp://u:p@ss@c:554/x@y", "rtsp://c/a?b@c", "/dev/video0", "auto",
     "http://***@c/?***", "rtsps://[::1]/x?"],
)  # fmt: skip
def test_addresses_are_masked_as_the_device_does(address):
    if "://" in address:
        assert without_secrets(address).removesuffix("?***") == masked(address).removesuffix("?***")
        assert without_secrets(without_secrets(address)) == without_secrets(address)
    else:
        assert without_secrets(address) == address


def test_unusable_settings_still_give_host_keys_and_a_sentence(tmp_path, caplog):
    board = Board(tmp_path / "root", text="[system]\nhostnme = 'x'\n")
    assert board.boot().failed == ["read the settings"]
    assert "unknown key system.hostnme" in caplog.text and "ssh-keygen -A" in board.ran


def test_the_serial_is_the_firmwares_or_from_the_machine_id(tmp_path):
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
