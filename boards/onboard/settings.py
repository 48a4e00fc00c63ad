"""``edge-kit.toml``: what a person says of one device, on the partition that every computer reads.

It runs on boards without edge-kit's other modules, so that a damaged installation still gets its
network and its keys: standard library only.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FILE", "MASK", "Settings", "SettingsError", "dump", "without_secrets"]

FILE = "edge-kit.toml"
# What stands for user, password and query of a camera's address once they are removed.
MASK = "***"

_KEYS: dict[str, dict[str, type]] = {
    "system": {"hostname": str, "timezone": str, "ssh_keys": list, "ntp": list},
    "wifi": {"ssid": str, "password": str, "country": str},
    "tls": {"ca": str, "certificate": str, "key": str, "generate_key": bool, "enroll": str},
    "secrets": {"broker_password": str, "enroll_user": str, "enroll_password": str},
}
# RFC 1123 labels; {serial} is filled in on the board.
_HOSTNAME = re.compile(r"(?=.{1,63}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")
_TIME_SERVER = re.compile(r"[A-Za-z0-9:][A-Za-z0-9:.-]{0,252}")
# A device id becomes part of topics, and the subject of a certificate's request.
_DEVICE = re.compile("[A-Za-z0-9._-]{1,64}")
_BARE_KEY = re.compile("[A-Za-z0-9_-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# RFC 7030, section 3.2.2: a label may follow.
_EST = re.compile(
    r"https://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?"
    r"/\.well-known/est(/[A-Za-z0-9._~-]+)?"
)
_SSH_KEY = re.compile(r"(ssh|ecdsa|sk)-[a-z0-9@.-]+ [A-Za-z0-9+/=]{40,}( [^\x00-\x1f\x7f]*)?")


class SettingsError(ValueError):
    """A file that makes no sense; the text names key and reason."""


@dataclass(frozen=True)
class Settings:
    """What one device should be.

    Attributes:
        hostname: May hold ``{serial}``.
        timezone: Such as ``Europe/Lisbon``; empty leaves UTC.
        ssh_keys: Public keys that let their owners in as root.
        ntp: Time servers; empty leaves the system's.
        ssid: Wi-Fi network; empty for none.
        wifi_password: Its passphrase; empty for an open network.
        country: Two letters; the radio's rules.
        ca: PEM text of the authorities that sign the broker's certificate.
        certificate: PEM text of the device's certificate.
        key: PEM text of its key.
        generate_key: Make a key on the board, and a request for a certificate.
        enroll: Address of the EST server that signs the device's certificate; empty for none.
        broker_password: Of the broker's user.
        enroll_user: Whom the EST server knows.
        enroll_password: For one enrolment.
        run: Keys of ``edge-kit run``'s configuration.
    """

    hostname: str = "edge-{serial}"
    timezone: str = ""
    ssh_keys: tuple[str, ...] = ()
    ntp: tuple[str, ...] = ()
    ssid: str = ""
    wifi_password: str = field(default="", repr=False)
    country: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = field(default="", repr=False)
    generate_key: bool = False
    enroll: str = ""
    broker_password: str = field(default="", repr=False)
    enroll_user: str = ""
    enroll_password: str = field(default="", repr=False)
    run: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Read the file.

        Raises:
            SettingsError: It is no TOML, or a key is unknown or makes no sense.
        """
        try:
            # Some editors begin a file with a byte order mark.
            data = tomllib.loads(text.removeprefix("\ufeff"))
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"no TOML: {error}") from None
        run = data.pop("run", {})
        if not isinstance(run, dict):
            raise SettingsError("run is no table")
        for table, keys in data.items():
            _check_table(table, keys)
        tables = ("system", "wifi", "tls", "secrets")
        system, wifi, tls, secrets = (data.get(name, {}) for name in tables)
        settings = cls(
            hostname=system.get("hostname", cls.hostname),
            timezone=system.get("timezone", ""),
            ssh_keys=tuple(key.strip() for key in system.get("ssh_keys", ())),
            ntp=tuple(system.get("ntp", ())),
            ssid=wifi.get("ssid", ""),
            wifi_password=wifi.get("password", ""),
            country=wifi.get("country", ""),
            ca=tls.get("ca", ""),
            certificate=tls.get("certificate", ""),
            key=tls.get("key", ""),
            generate_key=tls.get("generate_key", False),
            enroll=tls.get("enroll", "").rstrip("/"),
            broker_password=secrets.get("broker_password", ""),
            enroll_user=secrets.get("enroll_user", ""),
            enroll_password=secrets.get("enroll_password", ""),
            run=run,
        )
        settings._check()
        return settings

    @property
    def has_secrets(self) -> bool:
        """Whether `public` leaves something out."""
        secrets = (self.wifi_password, self.key, self.broker_password)
        masked = self._public_run() != dict(self.run)
        return any((*secrets, self.enroll_user, self.enroll_password, masked))

    @property
    def makes_key(self) -> bool:
        """Whether the board makes its own key."""
        return self.generate_key or bool(self.enroll and not self.key)

    def public(self) -> str:
        """Return the file without what nobody who finds the card should read."""
        return dump(self._tables(secret=False))

    def whole(self) -> str:
        """Return the file with everything."""
        return dump(self._tables(secret=True))

    def _tables(self, *, secret: bool) -> dict[str, dict[str, Any]]:
        def kept(text: str) -> str:
            return text if secret else ""

        tables: dict[str, dict[str, Any]] = {
            "system": {
                "hostname": self.hostname,
                "timezone": self.timezone,
                "ssh_keys": list(self.ssh_keys),
                "ntp": list(self.ntp),
            },
            "wifi": {
                "ssid": self.ssid,
                "password": kept(self.wifi_password),
                "country": self.country,
            },
            "tls": {
                "ca": self.ca,
                "certificate": self.certificate,
                "key": kept(self.key),
                "generate_key": self.generate_key,
                "enroll": self.enroll,
            },
            "secrets": {
                "broker_password": kept(self.broker_password),
                "enroll_user": kept(self.enroll_user),
                "enroll_password": kept(self.enroll_password),
            },
            "run": dict(self.run) if secret else self._public_run(),
        }
        filled = {
            name: {k: v for k, v in table.items() if v not in ("", [], False) or name == "run"}
            for name, table in tables.items()
        }
        return {name: table for name, table in filled.items() if table}

    def _public_run(self) -> dict[str, Any]:
        run = dict(self.run)
        if isinstance(camera := run.get("camera"), str):
            run["camera"] = without_secrets(camera)
        return run

    def _check(self) -> None:
        if not _HOSTNAME.fullmatch(self.hostname.replace("{serial}", "0" * 16)):
            raise SettingsError(
                f"system.hostname {self.hostname!r} is no host name: small letters, digits, hyphens"
            )
        if self.timezone and not _ZONE.fullmatch(self.timezone):
            raise SettingsError(f"system.timezone {self.timezone!r} is no time zone")
        for key in self.ssh_keys:
            if not _SSH_KEY.fullmatch(key):
                raise SettingsError(
                    "system.ssh_keys holds what is no public key (a line that starts with ssh-…)"
                )
        self._check_wifi()
        if self.key and self.generate_key:
            raise SettingsError("tls.key is given and tls.generate_key asks for another one")
        for server in self.ntp:
            if not _TIME_SERVER.fullmatch(server):
                raise SettingsError(f"system.ntp {server!r} is no host name and no address")
        self._check_enrolment()
        for name in ("ca", "certificate", "key"):
            if (text := getattr(self, name)) and "-----BEGIN " not in text:
                raise SettingsError(f"tls.{name} is no PEM text")
        self._check_run()

    def _check_wifi(self) -> None:
        length = len(self.wifi_password.encode())
        hexadecimal = re.fullmatch("[0-9a-fA-F]{64}", self.wifi_password)
        if self.wifi_password and not (8 <= length <= 63 or hexadecimal):
            raise SettingsError(
                "wifi.password must have 8 to 63 characters, or 64 hexadecimal digits"
            )
        if _CONTROL.search(self.wifi_password):
            raise SettingsError("wifi.password holds a line break or another control character")
        if self.ssid and not 1 <= len(self.ssid.encode()) <= 32:
            raise SettingsError("wifi.ssid must have 1 to 32 bytes")
        if self.ssid and not re.fullmatch("[A-Z]{2}", self.country):
            raise SettingsError("wifi.country must be two capital letters, such as DE")

    def _check_run(self) -> None:
        for key in ("password", "password_file", "tls_ca", "tls_cert", "tls_key", "spool"):
            if key in self.run:
                raise SettingsError(f"run.{key} is set by the first boot; see [secrets] and [tls]")
        for key in self.run:
            if not _BARE_KEY.fullmatch(key):
                raise SettingsError(f"run.{key!r} is no key of `edge-kit run`")
        device = self.run.get("device_id", "d")
        if not (isinstance(device, str) and _DEVICE.fullmatch(device)):
            raise SettingsError(
                f"run.device_id {device!r} must be 1 to 64 of the characters A-Z a-z 0-9 . _ -"
            )
        dump({"run": dict(self.run)})

    def _check_enrolment(self) -> None:
        if self.enroll and not _EST.fullmatch(self.enroll):
            raise SettingsError(
                f"tls.enroll {self.enroll!r} is no address such as "
                "https://est.example/.well-known/est"
            )
        broker = str(self.run.get("broker", "mqtts:"))
        if self.enroll and not broker.startswith("mqtts:"):
            raise SettingsError(f"tls.enroll is for a broker at mqtts://…, not {broker!r}")
        if (self.enroll_user or self.enroll_password) and not self.enroll:
            raise SettingsError("secrets.enroll_… is given, and tls.enroll names no server")
        if bool(self.enroll_user) != bool(self.enroll_password) or ":" in self.enroll_user:
            raise SettingsError(
                "secrets.enroll_user and enroll_password go together; a user holds no colon"
            )


def _check_table(table: str, keys: object) -> None:
    known = _KEYS.get(table)
    if known is None:
        raise SettingsError(f"unknown table [{table}]; known: {', '.join([*_KEYS, 'run'])}")
    if not isinstance(keys, dict):
        raise SettingsError(f"{table} is no table")
    for key, value in keys.items():
        if key not in known:
            raise SettingsError(f"unknown key {table}.{key}; known: {', '.join(known)}")
        if type(value) is not known[key]:
            raise SettingsError(f"{table}.{key} should be {known[key].__name__}")
        if isinstance(value, list) and not all(isinstance(v, str) for v in value):
            raise SettingsError(f"{table}.{key} should hold texts")


def without_secrets(address: str) -> str:
    """Return a camera's address with user, password and query masked; others as they are.

    The same rule as `edge_kit.masking`, which is not there when a board starts for the first time.
    """
    found = re.match(r"([A-Za-z]+://)(?:([^/?]*)@)?([^?]*)(\?.*)?", address, re.S)
    if found is None:
        return address
    who, query = (f"{MASK}@" if found[2] is not None else ""), (f"?{MASK}" if found[4] else "")
    return f"{found[1]}{who}{found[3]}{query}"


def dump(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables of texts, numbers, truth values and lists of texts as TOML.

    A table with an empty name is the top level, and goes first.
    """
    parts = []
    for name, table in tables.items():
        head = [f"[{name}]"] if name else []
        parts.append("\n".join([*head, *(f"{k} = {_value(k, v)}" for k, v in table.items())]))
    return "\n\n".join(parts) + "\n"


def _value(key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # A JSON string is a TOML basic string, but for DEL.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(_value(key, item) for item in value) + "]"
    raise SettingsError(f"{key} should be a text, a number or true or false")
