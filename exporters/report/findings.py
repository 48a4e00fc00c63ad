"""What the manifest and the report record of an export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_kit.exits import ExitRule
from exporters.config import ExportConfig
from exporters.data.photos import PhotoSet
from exporters.graph.plan import SplitPlan
from exporters.judge.gates import Gate
from exporters.judge.outcome import Outcome

__all__ = ["manifest_figures", "provenance"]


def manifest_figures(
    config: ExportConfig,
    photos: PhotoSet,
    rule: ExitRule,
    calibration: Outcome,
    test: Outcome,
    gates: Sequence[Gate],
) -> dict[str, Any]:
    """Return what the manifest records, as JSON values.

    Args:
        config: What was asked for.
        photos: The data set.
        rule: The fitted exit rule.
        calibration: Answers on the validation split.
        test: Answers on the test split.
        gates: All of them.
    """
    splits = {name: len(part) for name, part in photos.splits.items()}
    return {
        "test": test.figures(rule),
        "calibration": calibration.figures(rule),
        "gates": [g.to_json() for g in gates],
        "photos": {**splits, "rule": photos.rule, "unreadable": len(photos.unreadable)},
        "export": config.to_json(),
    }


def provenance(config: ExportConfig, photos: PhotoSet, plan: SplitPlan) -> dict[str, Any]:
    """Return how an export was made, for people."""
    cut = plan.cut
    counts = ", ".join(f"{len(p)} {s}" for s, p in photos.splits.items())
    given = {k: v for k, v in config.to_json().items() if v is not None}
    return {
        "cut": f"{cut.name} {cut.shape}, {cut.macs_share:.1%} of the multiply-accumulates",
        "photos": f"{counts} ({photos.rule}); {len(photos.unreadable)} unreadable",
        "preprocessing": plan.rule,
        "tracer": plan.traced.method,
        **given,
    }
