"""A board before its first boot: a root directory, and the programs that would have run on it."""

from __future__ import annotations

from pathlib import Path

from boards.onboard.firstboot import FirstBoot
from boards.onboard.programs import call
from boards.onboard.settings import FILE

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
