"""Fixtures of tests that need a container engine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dockerd import Dockerd, unavailable

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def docker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dockerd]:
    """A daemon that holds the worker's image, built once for all tests."""
    skip_or_fail(unavailable())
    daemon = Dockerd(fast_directory() or tmp_path_factory.mktemp("dockerd"))
    try:
        daemon.start()
        daemon.import_images()
        daemon.build_worker(ROOT)
        yield daemon
    finally:
        daemon.stop()


def skip_or_fail(why: str) -> None:
    """Skip a test for the reason `why`, if any; fail where REQUIRE_CONTAINER forbids skips."""
    if why and os.environ.get("REQUIRE_CONTAINER"):
        pytest.fail(f"the container must be tested here, but {why}")
    if why:
        pytest.skip(f"the container cannot be tested: {why}")


def fast_directory() -> Path | None:
    """A directory in memory where there is plenty: a daemon on disk takes two minutes longer."""
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 6 << 30:
        return Path(tempfile.mkdtemp(prefix="edge-kit-dockerd-", dir=memory))
    return None
