"""Loop devices for tests; where a machine has none, the tests say so and are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


def why_not() -> str:
    """Return why loop devices cannot be used here; empty when they can."""
    if os.geteuid() != 0:
        return "loop devices need root"
    if any(shutil.which(tool) is None for tool in ("losetup", "lsblk")):
        return "losetup or lsblk is not installed"
    with tempfile.NamedTemporaryFile() as file:
        file.truncate(1 << 20)
        try:
            Loop(Path(file.name)).detach()
        except subprocess.CalledProcessError as error:
            return f"this kernel gives no loop device: {error.stderr.strip()}"
    return ""


class Loop:
    """A file as a block device.

    Args:
        file: It; as large as the device shall be.
        options: More of losetup's, such as ``--read-only``.
    """

    def __init__(self, file: Path, *options: str) -> None:
        self.file = file
        done = _call("losetup", "--find", "--show", *options, str(file))
        self.path = done.stdout.strip()

    @property
    def name(self) -> str:
        """Return such as ``loop0``."""
        return Path(self.path).name

    def detach(self) -> None:
        """Give the device back."""
        _call("losetup", "--detach", self.path)


def _call(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True)
