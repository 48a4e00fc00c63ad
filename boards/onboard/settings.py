"""``edge-kit.toml``: what a person says of one device, on the partition that every computer reads.

It runs on boards without edge-kit's other modules, so that a damaged installation still gets its
network and its keys: standard library only.
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FILE", "MASK", "Settings", "SettingsError", "dump"]

FILE = "edge-kit.toml"
# What stands for a camera's address with a user or a query once that is removed.
MASK = "***"

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
_SECRET_ADDRESS = re.compile("://.*[@?]")
_SET_BY_FIRST_BOOT = ("password", "password_file", "tls_ca", "tls_cert", "tls_key", "spool")


class SettingsError(ValueError):
    """A file that cannot be used; the text names key and reason."""


def _key(place: str, default: Any = "", *, secret: bool = False) -> Any:
    """Declare a field by its table and key in the file."""
    table, key = place.split(".")
    metadata = {"place": (table, key), "secret": secret}
    return field(default=default, repr=not secret, metadata=metadata)


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

    hostname: str = _key("system.hostname", "edge-{serial}")
    timezone: str = _key("system.timezone")
    ssh_keys: tuple[str, ...] = _key("system.ssh_keys", ())
    ntp: tuple[str, ...] = _key("system.ntp", ())
    ssid: str = _key("wifi.ssid")
    wifi_password: str = _key("wifi.password", secret=True)
    country: str = _key("wifi.country")
    ca: str = _key("tls.ca")
    certificate: str = _key("tls.certificate")
    key: str = _key("tls.key", secret=True)
    generate_key: bool = _key("tls.generate_key", False)
    enroll: str = _key("tls.enroll")
    broker_password: str = _key("secrets.broker_password", secret=True)
    enroll_user: str = _key("secrets.enroll_user", secret=True)
    enroll_password: str = _key("secrets.enroll_password", secret=True)
    run: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Read the file.

        Raises:
            SettingsError: It is not TOML, or a key is unknown or has an invalid value.
        """
        try:
            # Some editors begin a file with a byte order mark.
            data = tomllib.loads(text.removeprefix("\ufeff"))
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"it is not valid TOML: {error}") from None
        for table, keys in data.items():
            if not isinstance(keys, dict):
                raise SettingsError(f"{table} must be a table: [{table}]")
        run = data.pop("run", {})
        values = dict(_values(data))
        values["ssh_keys"] = tuple(key.strip() for key in values.get("ssh_keys", ()))
        values["enroll"] = values.get("enroll", "").rstrip("/")
        settings = cls(run=run, **values)
        settings._check()
        return settings

    @property
    def has_secrets(self) -> bool:
        """Whether `public` leaves something out."""
        return self.public() != self.whole()

    @property
    def makes_key(self) -> bool:
        """Whether the board makes its own key."""
        return self.generate_key or bool(self.enroll and not self.key)

    def public(self) -> str:
        """Return the file without secrets, as anyone who finds the card may read it."""
        run = dict(self.run)
        if _SECRET_ADDRESS.search(str(run.get("camera", ""))):
            run["camera"] = MASK
        return dump(self._tables(run, secret=False))

    def whole(self) -> str:
        """Return the file with everything."""
        return dump(self._tables(dict(self.run), secret=True))

    def _tables(self, run: dict[str, Any], *, secret: bool) -> dict[str, dict[str, Any]]:
        tables: dict[str, dict[str, Any]] = {}
        for (table, key), declared in _PLACES.items():
            value = getattr(self, declared.name)
            if value and (secret or not declared.metadata["secret"]):
                tables.setdefault(table, {})[key] = value
        return tables | ({"run": run} if run else {})

    def _check(self) -> None:
        for valid, what in (*self._system_rules(), *self._tls_rules(), *self._run_rules()):
            if not valid:
                raise SettingsError(what)
        dump({"run": self.run})

    def _system_rules(self) -> Iterator[tuple[object, str]]:
        """Yield whether each rule is met, and what is wrong if not."""
        yield (
            _HOSTNAME.fullmatch(self.hostname.replace("{serial}", "0" * 16)),
            f"system.hostname {self.hostname!r} must be small letters, digits and hyphens",
        )
        yield (
            not self.timezone or _ZONE.fullmatch(self.timezone),
            f"system.timezone {self.timezone!r} is not a valid time zone",
        )
        for key in self.ssh_keys:
            yield (
                _SSH_KEY.fullmatch(key),
                "system.ssh_keys must hold public keys: lines that start with ssh-…",
            )
        for server in self.ntp:
            yield (
                _TIME_SERVER.fullmatch(server),
                f"system.ntp {server!r} is not a valid host name or address",
            )
        length = len(self.wifi_password.encode())
        yield (
            length in (0, *range(8, 64)) or re.fullmatch("[0-9a-fA-F]{64}", self.wifi_password),
            "wifi.password must have 8 to 63 characters, or 64 hexadecimal digits",
        )
        yield (
            not _CONTROL.search(self.wifi_password),
            "wifi.password has a line break or another control character",
        )
        yield len(self.ssid.encode()) <= 32, "wifi.ssid must have 1 to 32 bytes"
        yield (
            not self.ssid or re.fullmatch("[A-Z]{2}", self.country),
            "wifi.country must be two capital letters, such as DE",
        )

    def _tls_rules(self) -> Iterator[tuple[object, str]]:
        yield (
            not (self.key and self.generate_key),
            "tls.key is given, and tls.generate_key asks for another one",
        )
        for name in ("ca", "certificate", "key"):
            text = getattr(self, name)
            yield not text or "-----BEGIN " in text, f"tls.{name} is not PEM text"
        yield (
            not self.enroll or _EST.fullmatch(self.enroll),
            f"tls.enroll {self.enroll!r} must be an address such as "
            "https://est.example/.well-known/est",
        )
        broker = str(self.run.get("broker", "mqtts:"))
        yield (
            not self.enroll or broker.startswith("mqtts:"),
            f"tls.enroll needs a broker at mqtts://…, not {broker!r}",
        )
        yield (
            self.enroll or not (self.enroll_user or self.enroll_password),
            "secrets.enroll_… is given, and tls.enroll names no server",
        )
        yield (
            bool(self.enroll_user) == bool(self.enroll_password) and ":" not in self.enroll_user,
            "secrets.enroll_user and enroll_password go together; a user has no colon",
        )

    def _run_rules(self) -> Iterator[tuple[object, str]]:
        for key in self.run:
            yield (
                key not in _SET_BY_FIRST_BOOT,
                f"run.{key} is set by the first boot; see [secrets] and [tls]",
            )
            yield _BARE_KEY.fullmatch(key), f"run.{key!r} is not a key of `edge-kit run`"
        device = self.run.get("device_id", "d")
        yield (
            isinstance(device, str) and _DEVICE.fullmatch(device),
            f"run.device_id {device!r} must be 1 to 64 of the characters A-Z a-z 0-9 . _ -",
        )


_PLACES: dict[tuple[str, str], dataclasses.Field[Any]] = {
    f.metadata["place"]: f for f in dataclasses.fields(Settings) if f.metadata
}


def _values(data: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each field that a file sets."""
    for table, keys in data.items():
        known = [k for t, k in _PLACES if t == table]
        if not known:
            tables = ", ".join(dict.fromkeys(t for t, _ in _PLACES))
            raise SettingsError(f"unknown table [{table}]; known: {tables}, run")
        for key, value in keys.items():
            if key not in known:
                raise SettingsError(f"unknown key {table}.{key}; known: {', '.join(known)}")
            declared = _PLACES[table, key]
            wanted = type(declared.default)
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                value = tuple(value)
            if type(value) is not wanted:
                raise SettingsError(f"{table}.{key} must be {_KINDS[wanted]}")
            yield declared.name, value


_KINDS: dict[type, str] = {str: "a text", bool: "true or false", tuple: "a list of texts"}


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
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(key, item) for item in value) + "]"
    raise SettingsError(f"{key} must be a text, a number, true or false, or a list of these")
