"""Stages that remember: work that was done with the same inputs is not done again."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edge_kit
from edge_kit.errors import ExportError
from exporters.progress import Progress

__all__ = ["Stage", "Workspace"]

_MARK = "stage.json"


@dataclass(frozen=True)
class Stage:
    """A finished stage.

    Attributes:
        name: Its name, also of its folder.
        folder: What it made.
        digest: Hash over its inputs and those of the stages that it built on.
        seconds: How long the work took when it was done.
        reused: True when it had been done before.
    """

    name: str
    folder: Path
    digest: str
    seconds: float
    reused: bool


class Workspace:
    """A folder of stages.

    A stage's folder is kept when an interrupted run left it half-made with the same inputs, so
    that work which resumes by itself can; with other inputs it is emptied first.

    Args:
        root: Made when missing.
        progress: Told which stages run and which are reused.
    """

    def __init__(self, root: Path, progress: Progress) -> None:
        self.root = root
        self._progress = progress
        self.done: list[Stage] = []

    def run(
        self,
        name: str,
        inputs: Mapping[str, Any],
        make: Callable[[Path], None],
        after: Sequence[Stage] = (),
    ) -> Stage:
        """Run `make` in the stage's folder unless that was done with the same inputs.

        Args:
            name: Of the stage.
            inputs: All that decides the result; JSON values.
            make: Does the work; gets the folder.
            after: Stages whose results it uses.

        Raises:
            ExportError: The folder cannot be written.
        """
        folder = self.root / name
        digest = _digest(name, inputs, after)
        mark = _read_mark(folder)
        if mark.get("digest") == digest and mark.get("done"):
            self._progress.say(f"{name}: done before, reused")
            stage = Stage(name, folder, digest, float(mark["seconds"]), True)
        else:
            stage = self._make(name, folder, digest, make, mark.get("digest") == digest)
        self.done.append(stage)
        return stage

    def _make(
        self, name: str, folder: Path, digest: str, make: Callable[[Path], None], resume: bool
    ) -> Stage:
        self._progress.say(f"{name}: resumed" if resume else name)
        start = time.monotonic()
        try:
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            _write_mark(folder, digest, done=False, seconds=0.0)
            make(folder)
            seconds = time.monotonic() - start
            _write_mark(folder, digest, done=True, seconds=seconds)
        except OSError as error:
            # numpy's own errors only count the bytes that a full disk did not take.
            reason = error.strerror or f"not all could be written ({error})"
            raise ExportError(
                f"stage {name!r} cannot work in {folder}: {reason}",
                "free space or choose another --out; finished stages are kept",
            ) from error
        return Stage(name, folder, digest, seconds, False)


def _digest(name: str, inputs: Mapping[str, Any], after: Sequence[Stage]) -> str:
    content = {
        "name": name,
        "version": edge_kit.__version__,
        "inputs": inputs,
        "after": [s.digest for s in after],
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read_mark(folder: Path) -> dict[str, Any]:
    try:
        mark = json.loads((folder / _MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return mark if isinstance(mark, dict) else {}


def _write_mark(folder: Path, digest: str, *, done: bool, seconds: float) -> None:
    part = folder / (_MARK + ".part")
    part.write_text(json.dumps({"digest": digest, "done": done, "seconds": seconds}))
    part.replace(folder / _MARK)
