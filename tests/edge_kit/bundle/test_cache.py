"""Unpacked bundles: which copies are kept, and which are removed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edge_kit.bundle import Bundle, pack
from edge_kit.bundle import cache as cache_module
from tests.support.tiny import make_bundle


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    """Four packed bundles of different content."""
    root = tmp_path_factory.mktemp("packed")
    made = []
    for index in range(4):
        make_bundle(root / f"{index}", gain=0.1 * (index + 1))
        pack(root / f"{index}", root / f"{index}.ekb")
        made.append(root / f"{index}.ekb")
    return made


def open_elsewhere(file: Path, cache: Path) -> Path:
    """Open a bundle in a process that ends at once, and return its folder."""
    return Path(process(file, cache, "").communicate(timeout=60)[0].strip())


def process(file: Path, cache: Path, then: str) -> subprocess.Popen[str]:
    code = (
        "import sys; from pathlib import Path; from edge_kit.bundle import Bundle; "
        "print(Bundle.open(sys.argv[1], cache=Path(sys.argv[2])).root, flush=True); " + then
    )
    argv = [sys.executable, "-c", code, str(file), str(cache)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kept(cache: Path) -> set[Path]:
    return set(cache.iterdir())


def test_copy_in_use_and_the_one_before_are_kept(files, tmp_path):
    roots = [open_elsewhere(file, tmp_path) for file in files]
    assert kept(tmp_path) == set(roots[-2:])


def test_copy_that_another_process_uses_is_kept(files, tmp_path):
    user = process(files[0], tmp_path, "sys.stdin.read()")
    used = Path(user.stdout.readline().strip())
    roots = [open_elsewhere(file, tmp_path) for file in files[1:]]
    assert kept(tmp_path) == {used, *roots[-2:]}
    user.communicate(timeout=60)
    open_elsewhere(files[3], tmp_path)
    assert kept(tmp_path) == set(roots[-2:])


def test_copy_that_this_process_uses_is_kept(files, tmp_path):
    used = [Bundle.open(file, cache=tmp_path).root for file in files[:3]]
    assert kept(tmp_path) == set(used)


def test_copy_used_again_counts_as_the_newest(files, tmp_path):
    first, second = (open_elsewhere(file, tmp_path) for file in files[:2])
    os.utime(second, (time.time() - 60,) * 2)
    assert open_elsewhere(files[0], tmp_path) == first
    third = open_elsewhere(files[2], tmp_path)
    assert kept(tmp_path) == {first, third}


def test_rest_of_a_killed_process_is_removed(files, tmp_path):
    (tmp_path / "unpack-abc" / "end").mkdir(parents=True)
    root = open_elsewhere(files[0], tmp_path)
    assert kept(tmp_path) == {root}


def test_file_of_somebody_else_in_the_cache_is_left_alone(files, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for file in files:
        open_elsewhere(file, tmp_path)
    assert (tmp_path / "notes.txt").exists()


def test_lock_moves_to_the_copy_that_replaced_a_damaged_one(files, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_module, "_in_use", {})
    root = Bundle.open(files[0], cache=tmp_path).root
    (root / "manifest.json").unlink()
    assert Bundle.open(files[0], cache=tmp_path).root == root
    assert list(cache_module._in_use) == [root]
