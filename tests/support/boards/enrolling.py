"""A board after its first boot, which asks a real EST server for its certificate."""

from __future__ import annotations

import copy
import shutil
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

from boards.onboard.enroll import Enrolment
from boards.onboard.firstboot import DATA, ENROLL_SECRET, FirstBoot
from boards.onboard.programs import call
from boards.onboard.settings import FILE
from tests.support.boards.estserver import PASSWORD, USER

RESTART = "systemctl --no-block try-restart edge-kit.service"


class Killed(BaseException):
    """The power is cut here."""


class Board:
    """A root directory after its first boot. openssl runs for real; systemctl is only noted."""

    def __init__(self, root: Path, server: str, ca: Path | None, *, secrets: bool = True) -> None:
        self.root = root
        self.ran: list[str] = []
        self.dies_at = ""
        self.clock: Callable[[], float] = time.time
        self.boot_file = root / "boot/firmware" / FILE
        lines = ["[tls]", f'enroll = "{server}/"']
        if ca is not None:
            lines.append(f"ca = '''{ca.read_text()}'''")
        lines += ["[run]", 'broker = "mqtts://broker.example"', 'device_id = "cam-7"']
        if secrets:
            lines += ["[secrets]", f'enroll_user = "{USER}"', f'enroll_password = "{PASSWORD}"']
        self.boot_file.parent.mkdir(parents=True)
        self.boot_file.write_text("\n".join(lines) + "\n")
        (root / "etc").mkdir()
        (root / "etc/machine-id").write_text("1" * 32)
        self.boot()

    def boot(self) -> None:
        first = FirstBoot(self.root, self.run)
        assert first() and first.failed == []
        self.ran.clear()

    def copy(self, root: Path) -> Board:
        shutil.copytree(self.root, root)
        other = copy.copy(self)
        other.root, other.ran = root, []
        return other

    def run(self, *words: object, stdin: str | None = None) -> str:
        line = " ".join(map(str, words))
        self.ran.append(line)
        if self.dies_at and self.dies_at in line:
            raise Killed
        return call(*words, stdin=stdin) if words[0] == "openssl" else ""

    def step(self) -> str:
        return Enrolment(self.root, self.run, self.clock).step()

    @property
    def tls(self) -> Path:
        return self.root / DATA / "tls"

    @property
    def certificate(self) -> Path:
        return self.tls / "device.crt"

    @property
    def secret(self) -> Path:
        return self.root / ENROLL_SECRET

    @property
    def config(self) -> dict[str, object]:
        return tomllib.loads((self.root / "etc/edge-kit/device.toml").read_text())

    def is_untouched(self) -> bool:
        """No certificate, the secret still there, nothing half-written, no restart."""
        odd = [p for p in (*self.tls.iterdir(), *(self.root / "etc/edge-kit").iterdir())
               if ".new" in p.name or "pending" in p.name]  # fmt: skip
        return (
            not self.certificate.exists()
            and self.secret.exists()
            and "tls_cert" not in self.config
            and odd == []
            and RESTART not in self.ran
        )
