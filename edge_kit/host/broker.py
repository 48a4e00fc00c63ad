"""A broker for demonstrations and development: a child process on loopback.

mosquitto when it is installed, else iotcore from PyPI. For more than one machine run a broker of
your own: ``docs/cloud.md``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_kit.errors import LinkError
from edge_kit.host.child_process import end_child, end_with_parent, last_words

__all__ = ["HOST", "BrokerProcess", "broker_process", "find_mosquitto"]

HOST = "127.0.0.1"
READY_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 5.0
MAX_PACKET = 1 << 20

# set_tcp_nodelay: without it Nagle and delayed acknowledgements add 40 ms to each hop.
# max_inflight_messages 0: each client's own receive maximum is the limit.
_MOSQUITTO = """\
listener {port} {host}
allow_anonymous true
persistence false
set_tcp_nodelay true
max_inflight_messages 0
max_queued_messages 10000
max_packet_size {max_packet}
log_dest stderr
log_type error
log_type warning
"""

_IOTCORE = """\
id = 0

[router]
id = 0
max_connections = 1000
max_outgoing_packet_count = 200
max_segment_size = 104857600
max_segment_count = 10

[v5.1]
name = "edge-kit"
listen = "{host}:{port}"
next_connection_delay_ms = 1

[v5.1.connections]
connection_timeout_ms = 10000
max_payload_size = {max_packet}
max_inflight_count = 100
dynamic_filters = true
"""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BrokerProcess:
    """A running broker.

    Attributes:
        kind: ``mosquitto`` or ``iotcore``.
        port: TCP port on loopback.
        process: The child.
    """

    kind: str
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"mqtt://{HOST}:{self.port}"


def find_mosquitto() -> str | None:
    """Return the path of mosquitto; Debian puts it where a user's PATH does not look."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def broker_process(port: int = 0, kind: str = "auto") -> Iterator[BrokerProcess]:
    """Run a broker on loopback for the length of a ``with`` block.

    Args:
        port: TCP port; 0 takes a free one.
        kind: ``mosquitto``, ``iotcore``, or ``auto`` for the first of these that is installed.

    Raises:
        LinkError: No broker is installed, the port is taken, or the broker does not come up.
    """
    kind = _choose(kind)
    port = _claim(port)
    with tempfile.TemporaryDirectory(prefix="cloud-kit-broker-") as directory:
        config = Path(directory) / ("mosquitto.conf" if kind == "mosquitto" else "iotcore.toml")
        template = _MOSQUITTO if kind == "mosquitto" else _IOTCORE
        config.write_text(
            template.format(host=HOST, port=port, max_packet=MAX_PACKET), encoding="utf-8"
        )
        Path(directory).chmod(0o755)  # for the user that `_identity` chooses
        command = _command(kind, config)
        _log.info("starting %s", " ".join(command))
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=end_with_parent(),
                **_identity(kind),
            )
        try:
            _wait_ready(process, port, Path(directory) / "log")
            yield BrokerProcess(kind, port, process)
        finally:
            end_child(process, STOP_TIMEOUT_S)


def _choose(kind: str) -> str:
    have = {
        "mosquitto": find_mosquitto() is not None,
        "iotcore": importlib.util.find_spec("iotcore") is not None,
    }
    if kind == "auto":
        kind = next((name for name, installed in have.items() if installed), "")
    if not have.get(kind):
        raise LinkError(
            f"no {kind or 'broker'} is installed on this machine",
            "run: apt install mosquitto; or on x86-64: pip install 'edge-kit[broker]'",
        )
    return kind


def _command(kind: str, config: Path) -> list[str]:
    if kind == "mosquitto":
        return [find_mosquitto() or "mosquitto", "-c", str(config)]
    return [sys.executable, "-m", "iotcore", "--log-level", "CRITICAL", "--config", str(config)]


def _identity(kind: str) -> dict[str, Any]:
    """Return what makes mosquitto start without root's rights.

    It would give them up by itself, and the kernel would then forget to end it with its parent.
    """
    if kind != "mosquitto" or os.geteuid() != 0:
        return {}
    for name in ("mosquitto", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    return {}


def _claim(port: int) -> int:
    """Return a port that is free now; a taken one would answer in the broker's name."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise LinkError(
                f"port {port} on {HOST} cannot be used ({error.strerror})",
                "stop what listens there, or name another with --port (0 takes a free one)",
            ) from None
        return int(probe.getsockname()[1])


def _wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        time.sleep(0.02)
    raise LinkError(f"the broker did not start: {last_words(log.read_bytes())}")
