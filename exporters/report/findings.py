"""All that an export found out: what its report and its manifest are written from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exporters.config import ExportConfig
from exporters.data.photos import PhotoSet
from exporters.graph.plan import SplitPlan
from exporters.judge.gates import Gate
from exporters.judge.outcome import Outcome
from exporters.judge.thresholds import FittedExit
from exporters.stages.building import EngineFiles

__all__ = ["Findings"]


@dataclass(frozen=True)
class Findings:
    """What report and bundle are written from.

    Attributes:
        config: What was asked for.
        plan: The cut model.
        photos: The data set.
        fitted: The exit rule and its sweep.
        calibration: Answers on the validation split.
        test: Answers on the test split.
        gates: All of them.
        files: All engine files.
    """

    config: ExportConfig
    plan: SplitPlan
    photos: PhotoSet
    fitted: FittedExit
    calibration: Outcome
    test: Outcome
    gates: Sequence[Gate]
    files: EngineFiles

    def figures(self) -> dict[str, Any]:
        """Return what the manifest records, as JSON values."""
        rule = self.fitted.rule
        splits = {name: len(photos) for name, photos in self.photos.splits.items()}
        return {
            "test": self.test.figures(rule),
            "calibration": self.calibration.figures(rule),
            "gates": [g.to_json() for g in self.gates],
            "photos": {
                **splits,
                "rule": self.photos.rule,
                "unreadable": len(self.photos.unreadable),
            },
            "export": self.config.to_json(),
        }

    def made(self) -> dict[str, Any]:
        """Return how the export was made, for people."""
        cut, photos = self.plan.cut, self.photos
        counts = ", ".join(f"{len(p)} {s}" for s, p in photos.splits.items())
        given = {k: v for k, v in self.config.to_json().items() if v is not None}
        return {
            "cut": f"{cut.name} {cut.shape}, {cut.macs_share:.1%} of the multiply-accumulates",
            "photos": f"{counts} ({photos.rule}); {len(photos.unreadable)} unreadable",
            "preprocessing": self.plan.classifier.rule,
            "tracer": self.plan.traced.method,
            **given,
        }
