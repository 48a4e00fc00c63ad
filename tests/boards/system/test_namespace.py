"""Steps as root of a user namespace."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from boards.system.namespace import run_as_root
from edge_kit.errors import ImageError


def namespaces() -> bool:
    try:
        return run_as_root([sys.executable, "-c", ""]) == 0
    except ImageError:
        return False


@pytest.mark.skipif(not namespaces(), reason="needs user namespaces")
def test_step_is_root_with_its_own_mounts_and_users(tmp_path):
    step = (
        "import os, subprocess, pathlib\n"
        f"d = pathlib.Path({str(tmp_path)!r}) / 'mounted'\n"
        "d.mkdir()\n"
        "subprocess.run(['mount', '-t', 'tmpfs', 'x', d], check=True)\n"
        "(d / 'inside').touch()\n"
        f"f = pathlib.Path({str(tmp_path)!r}) / 'owned'\n"
        "f.touch()\n"
        "os.chown(f, 995, 44)\n"
        "raise SystemExit(7 if os.geteuid() == 0 and os.getpid() < 3 else 1)\n"
    )
    assert run_as_root([sys.executable, "-c", step]) == 7
    assert list((tmp_path / "mounted").iterdir()) == []  # the mount went with the namespace
    (tmp_path / "owned").unlink()


@pytest.mark.skipif(not namespaces(), reason="needs user namespaces")
def test_killed_build_ends_its_step(tmp_path):
    """Killed with no chance to clean up, the step dies too, and all of its children."""
    started = tmp_path / "started"
    step = f"import subprocess; subprocess.run(['sh', '-c', 'touch {started}; sleep 300'])"
    outer = (
        "import sys; from boards.system.namespace import run_as_root\n"
        f"run_as_root([sys.executable, '-c', {step!r}])"
    )
    # Whoever still runs holds its end of the pipe open.
    child = subprocess.Popen(
        [sys.executable, "-c", outer], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not started.exists():
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        child.kill()
    assert child.communicate(timeout=60) == (b"", None)
