"""The stage that runs a split through the exported files."""

from __future__ import annotations

from pathlib import Path

from exporters.data.decoded import DecodedPhotos
from exporters.engines.files import EngineFiles
from exporters.judge.outcome import Outcome, measure
from exporters.stages.workspace import Workspace

__all__ = ["answer_photos"]


def answer_photos(
    split: str, files: EngineFiles, photos: DecodedPhotos, work: Workspace
) -> Outcome:
    """Return what device, cloud half and full model answer on the photos of a split."""
    end, tail, full = files.primary, files.tail, files.full

    def make(folder: Path) -> None:
        outcome = measure(end, tail, full, photos, files.features, work.tick(split))
        outcome.save(folder / "outcome.npz")

    after = [file.source.name for file in (end, tail, full)]
    folder = work.run(f"outcome-{split}", {}, make, after=[*after, "pixels"])
    return Outcome.load(folder / "outcome.npz")
