"""Run commands on a board over SSH: the emulated ones of tests, as a person would on a real one."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from boards.system.tool import call, need
from edge_kit.errors import ImageError

__all__ = ["Shell", "make_key"]

_CONNECT_S = 20


def make_key(file: Path) -> str:
    """Make an SSH key without a passphrase; return its public line.

    Raises:
        ImageError: ssh-keygen is not installed.
    """
    call(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "edge-kit", "-f", file])
    return file.with_suffix(".pub").read_text(encoding="ascii").strip()


@dataclass(frozen=True)
class Shell:
    """Root on a board that loopback leads to.

    Attributes:
        port: On loopback.
        key: File of the private key.
    """

    port: int
    key: Path

    def command(self) -> list[str]:
        """Return the words that log in. Host keys are new at each first boot, so none is kept."""
        told = {
            "StrictHostKeyChecking": "no",
            "UserKnownHostsFile": "/dev/null",
            "LogLevel": "ERROR",
            "BatchMode": "yes",
            "ConnectTimeout": str(_CONNECT_S),
        }
        words = [need("ssh"), "-F", "/dev/null", "-i", str(self.key), "-p", str(self.port)]
        return [*words, *(f"-o{k}={v}" for k, v in told.items()), "root@127.0.0.1"]

    def run(self, command: str, *, timeout_s: float = 120, stdin: str | None = None) -> str:
        """Run a line of shell to its end; return what it wrote.

        Raises:
            ImageError: The board is not reached in time, or the line failed.
        """
        try:
            done = subprocess.run(
                [*self.command(), command],
                input=stdin, stdin=None if stdin is not None else subprocess.DEVNULL,
                capture_output=True, text=True, errors="replace", timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ImageError(f"the board took longer than {timeout_s:g} s for: {command}") from None
        if done.returncode:
            last = " / ".join((done.stderr or done.stdout).strip().splitlines()[-4:])
            raise ImageError(f"on the board, `{command}` ended with {done.returncode}: {last}")
        return done.stdout
