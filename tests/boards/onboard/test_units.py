"""Units, backoff and watchdog of the service, and where they are placed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from boards.image import hook
from boards.onboard.place import FILES, place_code, place_files, watchdog
from boards.onboard.settings import Settings


def test_backoff_doubles_and_restarts_after_a_long_run(tmp_path):
    uptime = tmp_path / "uptime"
    env = {"PATH": os.environ["PATH"], "RUNTIME_DIRECTORY": str(tmp_path), "SLEEP": "echo slept",
           "UPTIME_FILE": str(uptime)}  # fmt: skip

    def slept(now: int) -> int:
        uptime.write_text(f"{now}.25 3.00\n")
        told = subprocess.run(
            [FILES / "backoff"], env=env, check=True, capture_output=True, text=True
        )
        return int(told.stdout.split()[-1])

    waits, now = [], 100
    for _ in range(11):
        waits.append(slept(now))
        now += waits[-1] + 5
    assert waits == [0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert slept(now + 700) == 0


def test_slow_camera_gets_a_longer_watchdog():
    assert watchdog(Settings.parse("[run]\nfps = 2")) == ""
    assert "WatchdogSec=501\n" in watchdog(Settings.parse("[run]\nfps = 0.01"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A root with the payload, and the programs that its units name."""
    import edge_kit

    root = tmp_path / "tree"
    place_files(root, Settings())
    place_code(root, Path(edge_kit.__file__).parent)
    (root / "usr/bin").mkdir(parents=True)
    for name in ("python3", "sleep"):
        (root / "usr/bin" / name).symlink_to("/bin/true")
    return root


UNITS = ("edge-kit.service", "edge-kit-firstboot.service", "edge-kit-enroll.service")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_units_and_finds_little_exposed(tree):
    # In tenths; root's rights over files and the kernel's clock cost the enrolment its points.
    for name, threshold in (("edge-kit.service", 20), ("edge-kit-enroll.service", 30)):
        unit = tree / "etc/systemd/system" / name
        told = subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", f"--threshold={threshold}", unit],
            capture_output=True, text=True,
        )  # fmt: skip
        assert told.returncode == 0, told.stdout + told.stderr
    for name in (*UNITS, "edge-kit-enroll.timer"):
        text = (FILES / name).read_text()
        # The programs are on the board only; everything else is verified.
        words = [
            line if not line.startswith(("ExecStart=", "ExecStartPre=")) else "ExecStart=/bin/true"
            for line in text.splitlines()
            if not line.startswith("ExecStartPre=")
        ]
        copy = tree / name
        copy.write_text("\n".join(words) + "\n")
        told = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", copy],
            capture_output=True, text=True,
        )  # fmt: skip
        assert told.returncode == 0 and told.stderr.strip() == "", told.stderr


def test_first_boot_needs_the_standard_library_only(tree):
    """Nothing of edge-kit's own dependencies may be needed to get onto the network."""
    told = subprocess.run(
        ["/usr/bin/env", "-i", "python3", "-S", "-c",
         "import boards.onboard.firstboot, sys\n"
         "print('numpy' in sys.modules, 'edge_kit' in sys.modules)"],
        cwd=tree / "usr/lib/edge-kit/firstboot", capture_output=True, text=True,
    )  # fmt: skip
    assert told.stdout.split() == ["False", "False"], told.stderr


def test_units_are_enabled_and_no_caches_are_placed(tree):
    system = tree / "etc/systemd/system"
    for unit in UNITS:
        link = system / "multi-user.target.wants" / unit
        assert str(link.readlink()) == f"/etc/systemd/system/{unit}"
    link = system / "timers.target.wants/edge-kit-enroll.timer"
    assert str(link.readlink()) == "/etc/systemd/system/edge-kit-enroll.timer"
    # A stock image enables them by its script.
    line = re.search(r"systemctl enable (edge(?:\\\n|[^\n])*)", hook.SETUP)
    enabled = line[1].replace("\\\n", " ").split()
    assert sorted(enabled) == sorted(link.name for link in system.glob("*.wants/*"))
    assert (tree / "usr/lib/edge-kit/backoff").stat().st_mode & 0o111
    assert (tree / "usr/lib/edge-kit/site-packages/edge_kit/cli.py").exists()
    assert not list(tree.rglob("__pycache__"))
