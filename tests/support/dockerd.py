"""A Docker daemon of the tests' own, for building and running the worker's image.

Debian's daemon runs without iptables, bridge or systemd when root starts it by hand, so nothing
of the machine's own Docker is touched. Where it cannot run, `unavailable` says why.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CLIENT = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else shutil.which("docker")
BASE = "debian:bookworm-slim"
WORKER_IMAGE = "edge-kit-worker"  # the name in compose.yaml
BROKER_IMAGE = "eclipse-mosquitto:2"
BASE_CACHE = Path.home() / ".cache/edge-kit/container-base.tar"
START_TIMEOUT_S = 60.0
BROKER_STAND_IN = Path(__file__).with_name("mosquitto.Containerfile")
PATH_ENV = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def unavailable() -> str:
    """Return why no daemon can run here; empty when one can."""
    if os.geteuid() != 0:
        return "a Docker daemon of its own needs root"
    for program in ("dockerd", "docker"):
        if shutil.which(program) is None:
            return f"{program} is not installed (apt-get install docker.io)"
    return ""


def compose_command() -> list[str] | None:
    """Return how Docker Compose is called here: Docker's plugin, else Debian's own program."""
    if CLIENT is None:
        return None
    plugin = subprocess.run([CLIENT, "compose", "version"], capture_output=True)
    if plugin.returncode == 0:
        return [CLIENT, "compose"]
    program = shutil.which("docker-compose")
    return [program] if program else None


class Dockerd:
    """A daemon with a data directory, a socket and nothing else in common with the machine's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "dockerd.log"
        self._socket = f"unix://{root}/d.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Dockerd:
        self.root.mkdir(parents=True, exist_ok=True)
        command = ["dockerd", "--data-root", f"{self.root}/data", "--exec-root"]
        command += [f"{self.root}/exec", "-H", self._socket, "-p", f"{self.root}/d.pid"]
        command += ["--iptables=false", "--ip6tables=false", "--bridge=none"]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.run("info", check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise AssertionError(f"dockerd did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.1)
        return self

    def stop(self) -> None:
        if self._process is None:
            return
        left = self.run("ps", "-aq", check=False).stdout.split()
        if left:
            self.run("rm", "-f", *left, check=False)
        self._process.terminate()
        self._process.wait(60)
        self._process = None
        namespace = self.root / "exec/netns/default"
        if namespace.exists():
            subprocess.run(["umount", str(namespace)], check=False, capture_output=True)
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Call the client."""
        assert CLIENT is not None
        return self.call([CLIENT, *args], check=check)

    def call(
        self, command: list[str], *, cwd: Path | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run any program that speaks to this daemon."""
        env = os.environ | {"DOCKER_HOST": self._socket, "DOCKER_BUILDKIT": "1"}
        done = subprocess.run(
            command, cwd=cwd, env=env, capture_output=True, text=True, timeout=900
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stderr[-4000:]}")
        return done

    def inspect(self, name: str) -> dict[str, Any]:
        return json.loads(self.run("inspect", name).stdout)[0]

    def import_images(self) -> None:
        """Offer stand-ins for the public images where no registry of images can be asked.

        A machine without mmdebstrap pulls the real ones.
        """
        if not BASE_CACHE.exists():
            if shutil.which("mmdebstrap") is None:
                return
            _bootstrap(BASE_CACHE)
        self.run("import", "-c", PATH_ENV, str(BASE_CACHE), BASE)
        with tempfile.TemporaryDirectory() as empty:
            self._build(BROKER_STAND_IN, BROKER_IMAGE, Path(empty))

    def build_worker(self, context: Path) -> None:
        """Build the worker's image, handing on where this machine's pip finds its authority."""
        secrets: list[str] = []
        authority = _pip_setting("cert")
        if authority:
            config = self.root / "pip.conf"
            lines = ["[global]", "cert = /run/build-ca.crt"]
            if index := _pip_setting("index-url"):
                lines.append(f"index-url = {index}")
            config.write_text("\n".join(lines) + "\n")
            secrets += ["--secret", f"id=pipconf,src={config}"]
            secrets += ["--secret", f"id=ca,src={authority}"]
        self._build(context / "Containerfile", WORKER_IMAGE, context, *secrets)

    def _build(self, file: Path, tag: str, context: Path, *options: str) -> None:
        command = ["build", "--network", "host", "-f", str(file), "-t", tag]
        self.run(*command, *options, str(context))


def _bootstrap(tar: Path) -> None:
    """Write the root of a minimal Debian with Python."""
    tar.parent.mkdir(parents=True, exist_ok=True)
    part = tar.with_suffix(f".{os.getpid()}.tar")
    command = ["mmdebstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates"]
    command += ["--dpkgopt=force-unsafe-io", '--aptopt=APT::Install-Recommends "false"']
    subprocess.run([*command, "bookworm", str(part)], check=True, capture_output=True, timeout=900)
    part.replace(tar)


def _pip_setting(name: str) -> str:
    from_environment = os.environ.get(f"PIP_{name.replace('-', '_').upper()}")
    if from_environment:
        return from_environment
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() if done.returncode == 0 else ""
