"""`edge-kit bench`: how fast, how hot and how right a board runs a bundle."""

from __future__ import annotations

from edge_kit.bench.measure.task import Effort
from edge_kit.bench.plan import BenchPlan, run_plan
from edge_kit.bench.report.report import BenchReport

__all__ = ["BenchPlan", "BenchReport", "Effort", "run_plan"]
