"""What the manifest and the report record of an export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edge_kit.bundle.split import Costs, Split
from edge_kit.exits import ExitRule
from edge_kit.records import to_json
from exporters.config import ExportConfig
from exporters.data.photos import PhotoSet
from exporters.engines.files import EngineFiles
from exporters.graph.plan import SplitPlan
from exporters.judge.gates import Gate
from exporters.judge.outcome import Outcome
from exporters.judge.thresholds import FittedExit

__all__ = ["manifest_figures", "measured_split", "provenance"]


def manifest_figures(
    config: ExportConfig,
    photos: PhotoSet,
    rule: ExitRule,
    calibration: Outcome,
    test: Outcome,
    gates: Sequence[Gate],
) -> dict[str, Any]:
    """Return what the manifest records, as JSON values."""
    splits = {name: len(part) for name, part in photos.splits.items()}
    return {
        "test": test.figures(rule),
        "calibration": calibration.figures(rule),
        "gates": to_json(list(gates)),
        "photos": {**splits, "rule": photos.rule, "unreadable": len(photos.unreadable)},
        "export": config.to_json(),
    }


def measured_split(plan: SplitPlan, files: EngineFiles, fitted: FittedExit, test: Outcome) -> Split:
    """Return the split point with its costs as measured on the test split."""
    cut = plan.cut
    decided = (test.device.argmax(1), test.cloud.argmax(1), test.decisions(fitted.rule))
    device, cloud, hybrid = (test.share(labels).value for labels in decided)
    costs = Costs(
        device_macs=cut.macs_before,
        cloud_macs=plan.traced.macs - cut.macs_before,
        message_bytes_mean=float(test.message_bytes.mean()),
        message_bytes_p99=float(np.percentile(test.message_bytes, 99)),
        device_accuracy=device,
        cloud_accuracy=cloud,
        hybrid_accuracy=hybrid,
        photos=len(test.labels),
    )
    return Split(
        name=cut.name,
        features=files.features,
        macs_share=cut.macs_share,
        end=tuple(f.entry for f in files.ends),
        tail=files.tail.entry,
        exit=fitted.rule,
        curve=fitted.curve,
        costs=costs,
    )


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
