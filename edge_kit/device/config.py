"""The device's configuration: one frozen object, resolved once from file, environment and flags.

Later wins: defaults, the TOML file, ``EDGE_KIT_*`` variables, flags. `resolve` is given the
environment and the flags; nothing here reads them by itself.
"""

from __future__ import annotations

import difflib
import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from edge_kit.errors import ConfigError
from edge_kit.folders import state_folder
from edge_kit.link.address import BrokerAddress, read_password
from edge_kit.masking import MASK, mask_address
from edge_kit.wire import Topics

__all__ = ["ENV_PREFIX", "Config", "resolve"]

ENV_PREFIX = "EDGE_KIT_"
MIN_SPOOL_MB = 1

# Only one of each group counts: a flag must be able to overrule the other one in a file.
_RIVALS = (("camera", "source"), ("threshold", "target_offload"))


@dataclass(frozen=True)
class Config:
    """Everything that ``edge-kit run`` can be told. Keys of the file have the same names.

    Attributes:
        bundle: Directory or packed file.
        camera: ``auto``, a number, a device or an address; None for none.
        source: Photo, folder or video; None for none.
        fps: Pace, frames a second.
        live: Play files as a camera.
        split: Name of the split; None for the tuning's, else the bundle's first.
        engine: ``auto``, ``onnx`` or ``tflite``.
        threads: Of the engine; None for the cores of this process, at most 4.
        threshold: T of the exit rule; None for the bundle's.
        target_offload: Share to send, 0 to 1; picks T from the bundle's curve.
        broker: ``mqtt://…`` or ``mqtts://…``; None to run on the device alone.
        device_id: Names the topics and the MQTT client; the host's name by default.
        password_file: File that holds the password of the broker's user.
        password: The password itself; from ``EDGE_KIT_PASSWORD`` only.
        tls_ca: PEM file.
        tls_cert: PEM file.
        tls_key: PEM file.
        wait_for_clock: Connect to an ``mqtts`` broker only once the system clock was set.
        keep_trying: A broker that refuses this device does not end the run.
        spool: The spool's file; `resolve` names one in the user's state directory.
        spool_mb: Bound on its messages, MiB.
        spool_hours: Bound on the age of a sample.
        spool_sync: ``full`` (survives power cuts) or ``normal`` (fewer flushes).
        window: Samples that may await a result at once.
        resend_s: Least wait for a result before sending again.
        linger: Seconds to wait for results after the last frame.
        limit: Frames; None for no limit.
        json: Write JSON lines.
        origins: Where each value that is not a default came from.
    """

    bundle: Path | None = None
    camera: str | None = None
    source: Path | None = None
    fps: float | None = None
    live: bool = False
    split: str | None = None
    engine: str = "auto"
    threads: int | None = None
    threshold: float | None = None
    target_offload: float | None = None
    broker: str | None = None
    device_id: str = ""
    password_file: Path | None = None
    password: str = field(default="", repr=False)
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    wait_for_clock: bool = False
    keep_trying: bool = False
    spool: Path = Path("spool.db")
    spool_mb: float = 64.0
    spool_hours: float = 24.0
    spool_sync: str = "full"
    window: int = 16
    resend_s: float = 2.0
    linger: float = 30.0
    limit: int | None = None
    json: bool = False
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def address(self) -> BrokerAddress | None:
        """The broker with its credentials; None when there is none.

        Raises:
            ConfigError: Address, certificates or password cannot be used.
        """
        if self.broker is None:
            return None
        return BrokerAddress.parse(
            self.broker,
            password=self._password(),
            ca=self.tls_ca,
            cert=self.tls_cert,
            key=self.tls_key,
        )

    def lines(self) -> list[str]:
        """Return what is set, one ``key = value (origin)`` a line, secrets masked."""
        shown = []
        for key, origin in self.origins.items():
            value = MASK if key == "password" else getattr(self, key)
            if key == "camera" and value is not None:
                value = mask_address(value)  # an address may carry user and password
            shown.append(f"{key} = {value} ({origin})")
        return shown

    def _password(self) -> str:
        if self.password or self.password_file is None:
            return self.password
        return read_password(self.password_file)


def resolve(flags: Mapping[str, Any], env: Mapping[str, str], file: Path | None = None) -> Config:
    """Merge all layers.

    Args:
        flags: By field name; None means not given.
        env: The environment.
        file: TOML file; by default what ``EDGE_KIT_CONFIG`` names, if anything.

    Raises:
        ConfigError: An unknown key, a value of the wrong kind or out of range, or a bad file.
    """
    if file is None and env.get(ENV_PREFIX + "CONFIG"):
        file = Path(env[ENV_PREFIX + "CONFIG"])
    layers = [
        *([(_read_file(file), str(file))] if file else []),
        (_read_env(env), "environment"),
        ({k: v for k, v in flags.items() if v is not None}, "command line"),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer, origin in layers:
        for rivals in _RIVALS:
            if any(key in layer for key in rivals):
                for key in rivals:
                    values.pop(key, None)
                    origins.pop(key, None)
        for key, value in layer.items():
            values[key] = _convert(key, value, origin)
            origins[key] = origin
    if not values.get("device_id"):
        values["device_id"] = _host_id()
    values.setdefault("spool", state_folder(env) / values["device_id"] / "spool.db")
    config = Config(**values, origins=origins)
    _check(config)
    return config


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}", "check --config") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"the configuration file {path} cannot be read: {error}") from None
    for key in data:
        _known(key, f"in {path}")
    if "password" in data:
        raise ConfigError(
            f"{path} holds a password",
            "put it in a file of its own and name that with password_file",
        )
    return data


def _read_env(env: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, text in env.items():
        if name.startswith(ENV_PREFIX) and name != ENV_PREFIX + "CONFIG":
            key = name.removeprefix(ENV_PREFIX).lower()
            _known(key, f"in the environment ({name})")
            found[key] = text
    return found


def _known(key: str, where: str) -> None:
    if key in _CONVERTERS:
        return
    near = difflib.get_close_matches(key, _CONVERTERS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_CONVERTERS)}"
    raise ConfigError(f"unknown key {key!r} {where}", hint)


def _convert(key: str, value: Any, origin: str) -> Any:
    try:
        return _CONVERTERS[key](value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{key} = {value!r} ({origin}) is not valid: {error}") from None


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("it must be text")


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path):
        raise ValueError("it must be a path")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError("there is no such user, or it has no home") from None


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise ValueError("it must be true or false")


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError("it must be a number")
    return float(value)


def _integer(value: Any) -> int:
    if isinstance(value, bool) or float(value) != int(value):
        raise ValueError("it must be a whole number")
    return int(value)


def _camera(value: Any) -> str | None:
    if value is False:
        return None
    return "auto" if value is True or value == "" else str(value)


_KINDS: dict[str, Callable[[Any], Any]] = {
    "Path": _path,
    "Path | None": _path,
    "str": _text,
    "str | None": _text,
    "bool": _bool,
    "float": _number,
    "float | None": _number,
    "int": _integer,
    "int | None": _integer,
}
_CONVERTERS = {f.name: _KINDS[str(f.type)] for f in fields(Config) if f.name != "origins"}
_CONVERTERS["camera"] = _camera

# Key: least, most. What the source and the bundle check themselves is not here.
_RANGES: dict[str, tuple[float, float]] = {
    "threads": (1, 256),
    "threshold": (-1, 1),
    "target_offload": (0, 1),
    "spool_mb": (MIN_SPOOL_MB, 1 << 20),
    "spool_hours": (0.01, 24 * 365),
    "window": (1, 20),
    "resend_s": (0.1, 3600),
    "linger": (0, 86400),
    "limit": (1, 1 << 62),
}
_CHOICES = {"engine": ("auto", "onnx", "tflite"), "spool_sync": ("full", "normal")}


def _check(config: Config) -> None:
    for key, (least, most) in _RANGES.items():
        value = getattr(config, key)
        if value is not None and not least <= value <= most:
            raise ConfigError(f"{key} = {value:g} lies outside {least:g} to {most:g}")
    for key, choices in _CHOICES.items():
        if getattr(config, key) not in choices:
            raise ConfigError(f"{key} = {getattr(config, key)!r} is none of {', '.join(choices)}")
    try:
        Topics(config.device_id)
    except ValueError as error:
        raise ConfigError(str(error), "set device_id") from None
    if config.broker is not None:
        _ = config.address


def _host_id() -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "device"
