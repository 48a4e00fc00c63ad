"""The first boot: from the settings on the boot partition to a device that is itself.

Runs as root before network and service, by ``edge-kit-firstboot.service``. Each step can be
repeated; what fails is logged to the journal and tried again at the next boot, and secrets stay on
the boot partition until everything that needs them has worked. Standard library only, see
`settings`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from boards.onboard.certificates import make_key, make_request
from boards.onboard.programs import Run, call
from boards.onboard.redaction import finish_redaction, redact
from boards.onboard.settings import FILE, MASK, Settings, SettingsError, dump
from boards.onboard.wholefile import remove_whole, sync_folder, write_whole
from boards.onboard.wifi import connection, password_of

__all__ = ["FirstBoot", "device_serial", "main"]

_log = logging.getLogger("edge-kit-firstboot")

USER = "edge-kit"
ETC = "etc/edge-kit"
DATA = "var/lib/edge-kit"
# On the root partition, as most of what was done: the data outlive it.
DONE = f"{ETC}/first-boot-done"
REQUEST = "edge-kit-request.csr"
ENROLL = f"{ETC}/enroll.toml"
ENROLL_SECRET = f"{ETC}/enroll-secret"
TIME_SERVERS = "etc/systemd/timesyncd.conf.d/edge-kit.conf"
_WIFI = "etc/NetworkManager/system-connections/edge-kit-wifi.nmconnection"
_SSH_KEYS = "root/.ssh/authorized_keys"
# What it wrote it may remove; keys that somebody else put there stay.
_OWN_KEYS = f"# from {FILE} on the boot partition\n"
BOOT = ("boot/firmware", "boot")


class FirstBoot:
    """All steps on one file system.

    Args:
        root: The system's root; another directory in tests.
        run: Called with a program's words, and ``stdin``; returns its output.
    """

    def __init__(self, root: Path, run: Run) -> None:
        self._root = root
        self._run = run
        self._boot = next((root / b for b in BOOT if (root / b / FILE).exists()), root / BOOT[0])
        self.failed: list[str] = []

    def __call__(self) -> bool:
        """Do what is to be done; return whether all of it worked."""
        try:
            finish_redaction(self._boot / FILE)
        except OSError as error:
            # The file is half overwritten, and would be taken for settings.
            _log.error("%s cannot be finished: %s", self._boot / FILE, error)
            self.failed.append("remove secrets from the boot partition")
            return False
        if self._done_with() == self._settings_hash():
            return True
        # A boot that fails half way must not count as done.
        (self._root / DONE).unlink(missing_ok=True)
        # First, and without settings: more space and own host keys are good in any case.
        self._step("grow the data partition", self.grow)
        self._step("make SSH host keys", lambda: self._run("ssh-keygen", "-A"))
        self._step("make the directory of keys", self.folders)
        try:
            settings = Settings.parse((self._boot / FILE).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, SettingsError) as error:
            _log.error("%s cannot be used: %s", self._boot / FILE, error)
            self.failed.append("read the settings")
            return False
        serial = device_serial(self._root)
        for name, step in (
            ("set the host name", lambda: self.name(settings, serial)),
            ("set the time zone", lambda: self.zone(settings)),
            ("name time servers", lambda: self.time(settings)),
            ("let SSH keys in", lambda: self.ssh(settings)),
            ("set up Wi-Fi", lambda: self.wifi(settings)),
            ("place keys and certificates", lambda: self.tls(settings, serial)),
            ("prepare the enrolment", lambda: self.enrolment(settings, serial)),
            ("configure the service", lambda: self.service(settings, serial)),
        ):
            self._step(name, step)
        if not self.failed:
            self._step("remove secrets from the boot partition", lambda: self.forget(settings))
        if not self.failed:
            self._write(DONE, f"{self._settings_hash()}\n", 0o644)
        return not self.failed

    def _settings_hash(self) -> str:
        try:
            return hashlib.sha256((self._boot / FILE).read_bytes()).hexdigest()
        except OSError:
            return "none"

    def _done_with(self) -> str:
        """Return the hash of the settings that are in force; edited ones are taken at a boot."""
        if not (self._root / DATA / "tls").is_dir():
            return ""  # the data partition is another one, or is not there
        try:
            return (self._root / DONE).read_text(encoding="ascii").strip()
        except OSError:
            return ""

    def _step(self, name: str, step: Callable[[], object]) -> None:
        try:
            step()
            _log.info("done: %s", name)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            _log.error("failed: %s: %s", name, error)
            self.failed.append(name)

    def grow(self) -> None:
        """Let the data partition and its file system fill the card; a system may have none.

        Raises:
            OSError: There is one, and it is not mounted.
        """
        # Of the file system that holds it: a customized stock system has it on the root's.
        find = ("findmnt", "--noheadings", "--output", "SOURCE,TARGET", "--target", f"/{DATA}")
        device, _, target = self._run(*find).strip().partition(" ")
        if target.strip() != f"/{DATA}":
            if f"/{DATA}" in _text(self._root / "etc/fstab").split():
                raise OSError("it is not mounted; what is placed now would be hidden by it later")
            return
        if not device.startswith("/dev/"):
            return
        entry = self._root / "sys/class/block" / Path(device).name
        number = (entry / "partition").read_text(encoding="ascii").strip()
        disk = f"/dev/{entry.resolve().parent.name}"
        self._run("sfdisk", "--no-reread", "--force", "-N", number, disk, stdin=", +\n")
        self._run("partx", "--update", "--nr", number, disk)
        self._run("resize2fs", device)

    def folders(self) -> None:
        """Make the directory of keys, in one that only root may change."""
        data = self._root / DATA
        (data / "tls").mkdir(mode=0o755, parents=True, exist_ok=True)
        self._run("chown", f"root:{USER}", data)
        data.chmod(0o750)

    def name(self, settings: Settings, serial: str) -> None:
        """Set the host name, for now and for good."""
        name = settings.hostname.replace("{serial}", serial)
        self._write("etc/hostname", f"{name}\n", 0o644)
        hosts = self._root / "etc/hosts"
        lines = hosts.read_text(encoding="utf-8").splitlines() if hosts.exists() else []
        kept = [line for line in lines if not line.startswith("127.0.1.1")]
        self._write("etc/hosts", "\n".join([*kept, f"127.0.1.1\t{name}"]) + "\n", 0o644)
        self._run("hostname", name)

    def zone(self, settings: Settings) -> None:
        """Set the time zone.

        Raises:
            ValueError: This system does not know it.
        """
        if not settings.timezone:
            return
        if not (self._root / "usr/share/zoneinfo" / settings.timezone).is_file():
            raise ValueError(f"there is no time zone {settings.timezone}")
        link = self._root / "etc/localtime"
        link.unlink(missing_ok=True)
        link.symlink_to(f"/usr/share/zoneinfo/{settings.timezone}")
        self._write("etc/timezone", f"{settings.timezone}\n", 0o644)

    def time(self, settings: Settings) -> None:
        """Name the time servers, and only those: a network that needs it has no others."""
        if settings.ntp:
            text = f"[Time]\nNTP={' '.join(settings.ntp)}\nFallbackNTP=\n"
            self._write(TIME_SERVERS, text, 0o644)
        elif (self._root / TIME_SERVERS).exists():
            remove_whole(self._root / TIME_SERVERS)
        else:
            return
        # It may have started before us; if not, there is nothing to restart.
        self._run("systemctl", "--no-block", "try-restart", "systemd-timesyncd.service")

    def ssh(self, settings: Settings) -> None:
        """Authorize the SSH keys of the settings; there are no passwords."""
        if settings.ssh_keys:
            (self._root / "root/.ssh").mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(_SSH_KEYS, _OWN_KEYS + "\n".join(settings.ssh_keys) + "\n", 0o600)
        elif _text(self._root / _SSH_KEYS).startswith(_OWN_KEYS):
            remove_whole(self._root / _SSH_KEYS)

    def wifi(self, settings: Settings) -> None:
        """Write NetworkManager's connection and the radio's country; forget an old network."""
        place = self._root / _WIFI
        if not settings.ssid:
            if place.exists():
                remove_whole(place)
            return
        # The password may have been removed from the boot partition at an earlier boot.
        password = password_of(settings, _text(place))
        self._write(_WIFI, connection(settings, password), 0o600)
        regulatory = f"options cfg80211 ieee80211_regdom={settings.country}\n"
        self._write("etc/modprobe.d/edge-kit-wifi.conf", regulatory, 0o644)

    def tls(self, settings: Settings, serial: str) -> None:
        """Place what was given; make a key and a request for its certificate when asked to."""
        tls = self._root / DATA / "tls"
        given = settings.certificate.rstrip("\n") + "\n"
        for name, text, mode in (
            ("ca.pem", settings.ca, 0o644),
            ("device.key", settings.key, 0o640),
        ):
            if text:
                self._write(f"{DATA}/tls/{name}", text.rstrip("\n") + "\n", mode, group=USER)
        # They are not secret: the settings name them as long as they are wanted.
        if not settings.ca:
            (tls / "ca.pem").unlink(missing_ok=True)
        if not (settings.certificate or settings.enroll):
            for name in ("device.crt", "given.crt"):
                (tls / name).unlink(missing_ok=True)
        # One that was given before may have been renewed by the board since.
        if settings.certificate and not (settings.enroll and _text(tls / "given.crt") == given):
            self._write(f"{DATA}/tls/device.crt", given, 0o644, group=USER)
            self._write(f"{DATA}/tls/given.crt", given, 0o644)
        if settings.makes_key:
            self._make_key(tls)
        if settings.generate_key and not settings.enroll:
            self._ask_by_file(tls / "device.key", self._device_id(settings, serial))

    def _make_key(self, folder: Path) -> None:
        key, fresh = folder / "device.key", folder / "device.key.new"
        if not key.exists():
            fresh.unlink(missing_ok=True)
            make_key(fresh, self._run)
            self._own(fresh, 0o640, USER)
            with fresh.open("rb") as file:
                os.fsync(file.fileno())
            fresh.replace(key)
            sync_folder(folder)

    def _ask_by_file(self, key: Path, name: str) -> None:
        # Nothing secret: whoever signs takes it from the card, and puts the answer into [tls].
        self._write_path(self._boot / REQUEST, make_request(key, name, self._run), 0o644)

    def enrolment(self, settings: Settings, serial: str) -> None:
        """Say whom to ask for a certificate; `boards.onboard.enroll` asks, after the network."""
        if not settings.enroll:
            for name in (ENROLL, ENROLL_SECRET):
                (self._root / name).unlink(missing_ok=True)
            return
        name = self._device_id(settings, serial)
        if settings.enroll_password:
            pair = {"user": settings.enroll_user, "password": settings.enroll_password}
            self._write(ENROLL_SECRET, json.dumps(pair), 0o600)
        text = dump({"": {"server": settings.enroll, "name": name}})
        if text != _text(self._root / ENROLL):
            # A request that waits for its answer has another name, or is at another server.
            (self._root / DATA / "tls/enroll.csr").unlink(missing_ok=True)
        self._write(ENROLL, text, 0o644)

    def service(self, settings: Settings, serial: str) -> None:
        """Write the service's configuration."""
        run: dict[str, object] = {
            "device_id": self._device_id(settings, serial),
            "bundle": f"/{DATA}/bundles/current",
        }
        if broker := settings.run.get("broker"):
            # Nobody sits beside the board: it classifies and spools until the broker accepts it.
            run |= {"keep_trying": True, "wait_for_clock": str(broker).startswith("mqtts:")}
        run |= dict(settings.run)
        run["spool"] = f"/{DATA}/spool/spool.db"
        if settings.broker_password:
            text = settings.broker_password + "\n"
            self._write(f"{ETC}/broker-password", text, 0o640, group=USER)
        if (self._root / ETC / "broker-password").exists():
            run["password_file"] = f"/{ETC}/broker-password"
        if broker and str(broker).startswith("mqtts:"):
            run |= self._tls_files()
        run |= self._camera(settings)
        self._write(f"{ETC}/device.toml", dump({"": run}), 0o640, group=USER)

    def _tls_files(self) -> dict[str, object]:
        tls = self._root / DATA / "tls"
        files = {"tls_ca": "ca.pem"}
        # A key without its certificate is of no use.
        if (tls / "device.crt").exists():
            files |= {"tls_cert": "device.crt", "tls_key": "device.key"}
        return {k: f"/{DATA}/tls/{name}" for k, name in files.items() if (tls / name).exists()}

    def _camera(self, settings: Settings) -> dict[str, object]:
        """Return the camera's address that an earlier boot took from the settings."""
        camera = settings.run.get("camera")
        if not isinstance(camera, str) or MASK not in camera:
            return {}
        held = tomllib.loads(_text(self._root / ETC / "device.toml")).get("camera")
        if held is None:
            raise ValueError(f"run.camera {camera} has no address: give it with user and password")
        return {"camera": held}

    def forget(self, settings: Settings) -> None:
        """Replace the settings by what anyone may read. FAT and flash may keep old sectors."""
        if settings.has_secrets:
            # Programs' files, such as host keys, may not be on the card yet.
            os.sync()
            redact(self._boot / FILE, settings.public())

    @staticmethod
    def _device_id(settings: Settings, serial: str) -> str:
        return str(settings.run.get("device_id", f"edge-{serial}"))

    def _write(self, name: str, text: str, mode: int, group: str = "") -> None:
        self._write_path(self._root / name, text, mode, group)

    def _write_path(self, path: Path, text: str, mode: int, group: str = "") -> None:
        write_whole(path, text, mode, lambda fresh: self._own(fresh, mode, group))

    def _own(self, path: Path, mode: int, group: str) -> None:
        path.chmod(mode)
        if group:
            self._run("chgrp", group, path)


def device_serial(root: Path = Path("/")) -> str:
    """Return 16 hexadecimal digits that no other board has.

    A Raspberry Pi's firmware tells its serial number through the device tree; elsewhere they are
    derived from the machine id, which is random and made at the first boot.
    """
    for name in ("proc/device-tree/serial-number", "sys/firmware/devicetree/base/serial-number"):
        try:
            text = (root / name).read_text(encoding="ascii", errors="replace").strip("\0\n ")
        except OSError:
            continue
        if re.fullmatch("[0-9a-fA-F]{8,32}", text) and set(text) != {"0"}:
            return text.lower()[-16:].rjust(16, "0")
    machine = (root / "etc/machine-id").read_text(encoding="ascii").strip()
    # machine-id(5) asks that the id itself be kept, and hashed with a purpose.
    return hashlib.sha256(f"edge-kit {machine}".encode()).hexdigest()[:16]


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def main(arguments: Sequence[str] = ()) -> int:
    """Run on this machine, or on another root directory."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    root = Path(arguments[0]) if arguments else Path("/")
    return 0 if FirstBoot(root, call)() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
