"""A real mosquitto on a free port of loopback, for tests; `conftest.py` makes fixtures of it."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from pathlib import Path

import pytest

from edge_kit.host.broker import find_mosquitto
from edge_kit.link.address import BrokerAddress

PROGRAM = find_mosquitto() or "mosquitto"
START_TIMEOUT_S = 30.0


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Mosquitto:
    """One broker. `kill` is kill -9; `start` after it is a restart on the same port.

    Args:
        root: Directory for its configuration, log and database.
        persistence: Keep sessions and messages on disk, saved each second.
        users: User to password; anonymous clients are refused then.
        acl: Text of an access list.
        tls: Directory made by `make_certificates`; the listener speaks TLS then.
        client_certs: Refuse clients without a certificate of that directory's authority.
        extra: More lines of configuration.
    """

    def __init__(
        self,
        root: Path,
        *,
        persistence: bool = False,
        users: dict[str, str] | None = None,
        acl: str = "",
        tls: Path | None = None,
        client_certs: bool = False,
        extra: str = "",
    ) -> None:
        self.root = root
        self.port = free_port()
        self.tls = tls
        self.log = root / "mosquitto.log"
        self._config = root / "mosquitto.conf"
        self._process: subprocess.Popen[bytes] | None = None
        root.mkdir(parents=True, exist_ok=True)
        lines = [
            f"listener {self.port} 127.0.0.1",
            "set_tcp_nodelay true",
            "max_queued_messages 100000",
            f"allow_anonymous {'false' if users else 'true'}",
        ]
        if persistence:
            lines += ["persistence true", f"persistence_location {root}/", "autosave_interval 1"]
        if users:
            lines.append(f"password_file {self._write_users(users)}")
        if acl:
            (root / "acl").write_text(acl)
            lines.append(f"acl_file {root / 'acl'}")
        if tls:
            lines += [f"cafile {tls / 'ca.pem'}", f"certfile {tls / 'server.pem'}"]
            lines += [f"keyfile {tls / 'server.key'}"]
            lines.append(f"require_certificate {'true' if client_certs else 'false'}")
        # mosquitto started by root drops to a user that cannot read a test's directory.
        lines += ["user root", extra]
        self._config.write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://127.0.0.1:{self.port}"

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress.parse(self.url, ca=self.tls / "ca.pem" if self.tls else None)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> Mosquitto:
        """Start and wait until it accepts connections."""
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "-c", str(self._config)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"mosquitto: {self.log.read_text()}") from None
                time.sleep(0.02)

    def stop(self) -> None:
        """End it cleanly."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """Kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def restart(self) -> None:
        """Kill -9 and start again."""
        self.kill()
        self.start()

    def _write_users(self, users: dict[str, str]) -> Path:
        path = self.root / "passwords"
        path.write_text("")
        for user, password in users.items():
            command = ["mosquitto_passwd", "-b", str(path), user, password]
            subprocess.run(command, check=True, capture_output=True)
        return path


def dynamic_security(root: Path, *, subscribe: bool) -> str:
    """Return configuration for the plugin that refuses subscriptions, which acl_file does not.

    Skips the test where the plugin is not installed.
    """
    plugins = sorted(Path("/usr/lib").glob("*/mosquitto_dynamic_security.so"))
    if not plugins:
        pytest.skip("mosquitto's plugin for dynamic security is not installed")
    access = {"publishClientSend": True, "publishClientReceive": True, "unsubscribe": True}
    file = root / "dynamic-security.json"
    file.write_text(json.dumps({"defaultACLAccess": access | {"subscribe": subscribe}}))
    return f"plugin {plugins[0]}\nplugin_opt_config_file {file}"


def make_certificates(root: Path) -> Path:
    """Write an authority, a server for 127.0.0.1, clients, and their wrong relatives.

    ``ca.pem``, ``server.pem`` (127.0.0.1), ``elsewhere.pem`` (another host), ``expired.pem``,
    ``client.pem``, each with a ``.key``; ``other-ca.pem`` and ``stranger.pem``, signed by it.
    """
    root.mkdir(parents=True, exist_ok=True)

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=root, check=True, capture_output=True)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for ca in ("ca", "other-ca"):
        out = ["-keyout", f"{ca}.key", "-out", f"{ca}.pem", "-subj", f"/CN={ca}", "-days", "2"]
        openssl("req", "-x509", *curve, *out)
    for name, ca, san, days in (
        ("server", "ca", "IP:127.0.0.1,DNS:localhost", "2"),
        ("elsewhere", "ca", "DNS:elsewhere.example", "2"),
        ("expired", "ca", "IP:127.0.0.1", "-1"),
        ("client", "ca", "DNS:client", "2"),
        ("stranger", "other-ca", "DNS:stranger", "2"),
    ):
        openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", f"/CN={name}")  # fmt: skip
        (root / f"{name}.ext").write_text(f"subjectAltName={san}\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key",
                "-CAcreateserial", "-days", days, "-extfile", f"{name}.ext",
                "-out", f"{name}.pem")  # fmt: skip
    return root
