"""Where the broker is and how a client proves who it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from edge_kit.errors import ConfigError

__all__ = ["BrokerAddress", "read_password"]

_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True)
class BrokerAddress:
    """One broker.

    Attributes:
        host: Name or IP address.
        port: TCP port.
        tls: True for ``mqtts``.
        user: Empty for none.
        password: Never shown by ``repr`` or ``url``.
        ca: PEM file of the authorities to trust; None trusts the system's.
        cert: PEM file of the client's certificate; None for none.
        key: PEM file of its private key; None when `cert` holds it.
    """

    host: str
    port: int
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if not self.tls and (self.ca or self.cert or self.key):
            raise ConfigError(
                f"certificates are given, yet {self.url} is not encrypted",
                f"write mqtts://{self.host}, or leave the certificates out",
            )
        if self.key and not self.cert:
            raise ConfigError("a private key is given without a client certificate")
        if self.password and not self.user:
            raise ConfigError(
                f"a password is given for {self.url}, but no user",
                f"write {'mqtts' if self.tls else 'mqtt'}://USER@{self.host}:{self.port}",
            )
        for what, path in (("CA", self.ca), ("certificate", self.cert), ("key", self.key)):
            if path is not None:
                _check_readable(what, path)

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        password: str = "",
        ca: Path | None = None,
        cert: Path | None = None,
        key: Path | None = None,
    ) -> BrokerAddress:
        """Read ``mqtt://[user@]host[:port]`` or ``mqtts://…``.

        Raises:
            ConfigError: The address is not valid, or carries a password, which would show in
                process lists and shell histories.
        """
        example = "write mqtt://host:1883 or mqtts://user@host:8883"
        try:
            parts = urlsplit(url if "://" in url else f"mqtt://{url}")
            port = parts.port
        except ValueError:
            # Neither the address nor the reason is shown: both may hold a part of a password.
            raise ConfigError("the broker address has no valid host and port", example) from None
        if parts.scheme not in _PORTS:
            raise ConfigError(f"broker scheme {parts.scheme!r} is not mqtt or mqtts", example)
        if parts.password is not None:
            raise ConfigError(
                "the broker address holds a password",
                "put it in a file and name that as the password file, or in the environment",
            )
        if not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
            raise ConfigError(f"broker address {url!r} is not valid", example)
        return cls(
            host=parts.hostname,
            port=port or _PORTS[parts.scheme],
            tls=parts.scheme == "mqtts",
            user=unquote(parts.username or ""),
            password=password,
            ca=ca,
            cert=cert,
            key=key,
        )

    @property
    def url(self) -> str:
        """The address for people, password left out."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{'mqtts' if self.tls else 'mqtt'}://{user}{host}:{self.port}"


def read_password(file: Path) -> str:
    """Return what a password file holds, without the line break at its end.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the password file {file} cannot be read ({error})",
            "check the path and its permissions",
        ) from None


def _check_readable(what: str, path: Path) -> None:
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} file at {path}", "check the path") from None
    except OSError as error:
        raise ConfigError(
            f"the {what} file {path} cannot be read: {error.strerror}", "check its permissions"
        ) from None
