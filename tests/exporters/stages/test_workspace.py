"""Stages that remember what they did."""

from __future__ import annotations

import errno

import pytest

from edge_kit.errors import ExportError
from exporters.progress import SilentProgress
from exporters.stages.workspace import Workspace


class Chain:
    """Two stages, the second built on the first; counts the work."""

    def __init__(self, root) -> None:
        self.root = root
        self.made: list[str] = []
        self.fail = False

    def run(self, first: int, second: int = 0):
        workspace = Workspace(self.root, SilentProgress())
        workspace.run("one", {"n": first}, self.one)
        return workspace.run("two", {"n": second}, self.two, after=["one"])

    def one(self, folder) -> None:
        self.made.append("one")
        (folder / "half").write_text("x")

    def two(self, folder) -> None:
        self.made.append("two")
        (folder / f"part-{len(self.made)}").write_text("x")
        if self.fail:
            raise RuntimeError("crash")


def test_finished_stages_are_reused(tmp_path):
    chain = Chain(tmp_path)
    chain.run(1)
    folder = chain.run(1)
    assert chain.made == ["one", "two"]
    assert (folder / "part-2").exists()


def test_crash_keeps_finished_stages_and_partial_files(tmp_path):
    chain = Chain(tmp_path)
    chain.fail = True
    with pytest.raises(RuntimeError):
        chain.run(1)
    chain.fail = False
    folder = chain.run(1)
    assert chain.made == ["one", "two", "two"]
    assert (folder / "part-2").exists()
    assert (folder / "part-3").exists()


def test_changed_input_redoes_dependent_stages(tmp_path):
    chain = Chain(tmp_path)
    chain.run(1)
    folder = chain.run(2)
    assert chain.made == ["one", "two", "one", "two"]
    assert not (folder / "part-2").exists()
    chain.run(2, second=5)
    assert chain.made == ["one", "two", "one", "two", "two"]


def test_damaged_stage_mark_redoes_stage(tmp_path):
    chain = Chain(tmp_path)
    folder = chain.run(1)
    (folder / "stage.json").write_text("{")
    chain.run(1)
    assert chain.made == ["one", "two", "two"]


def test_full_disk_in_stage_is_named(tmp_path):
    def full(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    workspace = Workspace(tmp_path, SilentProgress())
    with pytest.raises(ExportError, match=r"stage 'features' cannot work in .*: No space left"):
        workspace.run("features", {}, full)
    made = []
    workspace.run("features", {}, made.append)
    assert made == [tmp_path / "features"]


def test_reused_stage_is_reported(tmp_path):
    chain = Chain(tmp_path)
    chain.run(1)
    progress = SilentProgress()
    Workspace(tmp_path, progress).run("one", {"n": 1}, chain.one)
    assert progress.lines == ["one: done before, reused"]
