"""Stages that remember: work that was done with the same inputs is not done again."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import edge_kit
from edge_kit.errors import ExportError
from exporters.progress import Progress, Tick

__all__ = ["Workspace"]

_MARK = "stage.json"


class Workspace:
    """A folder of stages, each with a folder of its own.

    A stage's key is a hash over its name, its inputs and the keys of the stages that it built on.
    Its folder is kept when an interrupted run left it half-made with the same key, so that work
    which resumes by itself can; with another key it is emptied first.

    Args:
        root: Made when missing.
        progress: Told which stages run and which are reused.
    """

    def __init__(self, root: Path, progress: Progress) -> None:
        self.root = root
        self.progress = progress
        self._keys: dict[str, str] = {}

    def tick(self, name: str) -> Tick:
        """Return what counts the steps of a stage."""
        return partial(self.progress.step, name)

    def run(
        self,
        name: str,
        inputs: Mapping[str, Any],
        make: Callable[[Path], None],
        after: Sequence[str] = (),
    ) -> Path:
        """Run `make` in the stage's folder unless that was done with the same key.

        Args:
            name: Of the stage.
            inputs: All that decides the result besides other stages; JSON values.
            make: Does the work; gets the folder.
            after: Names of the stages whose results it uses; they ran before.

        Returns:
            The folder.

        Raises:
            ExportError: The folder cannot be written.
        """
        folder = self.root / name
        key = self._keys[name] = _key(name, inputs, [self._keys[n] for n in after])
        mark = _read_mark(folder)
        resume = mark.get("digest") == key
        if resume and mark.get("done"):
            self.progress.say(f"{name}: done before, reused")
            return folder
        self.progress.say(f"{name}: resumed" if resume else name)
        try:
            if not resume:
                shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            _write_mark(folder, key, done=False)
            make(folder)
            _write_mark(folder, key, done=True)
        except OSError as error:
            # numpy's own errors only count the bytes that a full disk did not take.
            reason = error.strerror or f"not all could be written ({error})"
            raise ExportError(
                f"stage {name!r} cannot work in {folder}: {reason}",
                "free space or choose another --out; finished stages are kept",
            ) from error
        return folder


def _key(name: str, inputs: Mapping[str, Any], after: Sequence[str]) -> str:
    content = {
        "name": name,
        "version": edge_kit.__version__,
        "inputs": inputs,
        "after": after,
    }
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read_mark(folder: Path) -> dict[str, Any]:
    try:
        mark: dict[str, Any] = json.loads((folder / _MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return mark


def _write_mark(folder: Path, key: str, *, done: bool) -> None:
    part = folder / (_MARK + ".part")
    part.write_text(json.dumps({"digest": key, "done": done}))
    part.replace(folder / _MARK)
