"""A stage is done again when something that decides its result changed, and only then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import edge_kit
from exporters.progress import SilentProgress
from exporters.stages.workspace import Workspace

INPUTS = {"seed": 1, "rule": {"width": 16, "mean": [127.0, 127.0]}, "cut": "block", "none": None}


class Bench:
    """Runs stages in one folder, each time in a workspace of its own as a new process would."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def made(self, *stages: tuple[str, dict, list[str]]) -> list[str]:
        """Run stages of (name, inputs, names before); return which were not reused."""
        done: list[str] = []
        work = Workspace(self.root, SilentProgress())
        for name, inputs, after in stages:
            work.run(name, inputs, lambda folder: done.append(folder.name), after)
        return done


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize(
    "changed",
    [
        {"seed": 2},
        {"rule": {"width": 17, "mean": [127.0, 127.0]}},
        {"rule": {"width": 16, "mean": [127.0, 127.5]}},
        {"cut": None},
        {"none": 0},
        {"more": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_changed_input_redoes_stage_and_old_one_again_too(bench, changed):
    assert bench.made(("one", INPUTS, [])) == ["one"]
    assert bench.made(("one", INPUTS | changed, [])) == ["one"]
    assert bench.made(("one", INPUTS, [])) == ["one"]  # a folder holds one result


def test_left_out_input_redoes_stage(bench):
    bench.made(("one", INPUTS, []))
    fewer = {k: v for k, v in INPUTS.items() if k != "none"}
    assert bench.made(("one", fewer, [])) == ["one"]


@pytest.mark.parametrize(
    "same",
    [
        dict(reversed(INPUTS.items())),
        INPUTS | {"rule": {"mean": (127.0, 127.0), "width": 16}},
        json.loads(json.dumps(INPUTS)),
    ],
    ids=["other-order", "tuple", "through-json"],
)
def test_equal_inputs_written_differently_reuse_stage(bench, same):
    bench.made(("one", INPUTS, []))
    assert bench.made(("one", same, [])) == []


def test_other_version_redoes_stage(bench, monkeypatch):
    bench.made(("one", INPUTS, []))
    monkeypatch.setattr(edge_kit, "__version__", "0.0.0")
    assert bench.made(("one", INPUTS, [])) == ["one"]


def test_other_stage_with_equal_inputs_is_done(bench):
    assert bench.made(("one", INPUTS, []), ("two", INPUTS, [])) == ["one", "two"]


def chain(seed: int) -> list[tuple[str, dict, list[str]]]:
    """photos and model -> features -> halves; the report reads the photos alone."""
    return [
        ("photos", {"seed": 0}, []),
        ("model", {"seed": seed}, []),
        ("features", {}, ["photos", "model"]),
        ("halves", {}, ["features"]),
        ("report", {}, ["photos"]),
    ]


def test_change_at_the_start_redoes_everything_behind_and_nothing_beside(bench):
    assert len(bench.made(*chain(1))) == 5
    assert bench.made(*chain(1)) == []
    assert bench.made(*chain(2)) == ["model", "features", "halves"]


def test_stage_with_other_predecessors_is_done_again(bench):
    before = [("photos", {}, []), ("model", {}, [])]
    bench.made(*before, ("end", {}, ["photos", "model"]))
    assert bench.made(*before, ("end", {}, ["photos"])) == ["end"]
    assert bench.made(*before, ("end", {}, ["model", "photos"])) == ["end"]


def test_stage_done_again_starts_with_an_empty_folder(bench, tmp_path):
    work = Workspace(tmp_path, SilentProgress())
    work.run("one", {"n": 1}, lambda folder: (folder / "old").write_text("x"))
    seen: list[list[str]] = []
    work.run("one", {"n": 2}, lambda folder: seen.append(sorted(p.name for p in folder.iterdir())))
    assert seen == [["stage.json"]]


def test_stage_that_raises_is_not_taken_for_done(bench, tmp_path):
    def fail(folder: Path) -> None:
        raise ValueError("not ready")

    with pytest.raises(ValueError, match="not ready"):
        Workspace(tmp_path, SilentProgress()).run("one", {}, fail)
    assert bench.made(("one", {}, [])) == ["one"]
    assert bench.made(("one", {}, [])) == []


def test_deleted_folder_redoes_stage(bench, tmp_path):
    bench.made(("one", {}, []))
    for file in (tmp_path / "one").iterdir():
        file.unlink()
    (tmp_path / "one").rmdir()
    assert bench.made(("one", {}, [])) == ["one"]
