"""All that one run of ``edge-kit bench`` found. The JSON form: ``docs/benchmark.md``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_kit.bench.conditions.conditions import Conditions
from edge_kit.bench.measure.measurement import Measurement
from edge_kit.bench.measure.roundtrip import RoundTrip
from edge_kit.errors import UsageError
from edge_kit.records import from_json, to_json

__all__ = ["KIND", "SCHEMA", "BenchReport", "Model"]

KIND = "edge-kit-bench"
SCHEMA = 1


@dataclass(frozen=True)
class Model:
    """The bundle that was measured: its name, its hash in hexadecimal, and T."""

    name: str
    model_hash: str
    threshold: float


@dataclass(frozen=True)
class BenchReport:
    """One board, one bundle, any number of configurations.

    Attributes:
        version: Of edge-kit.
        measured_at: Unix time of the start, seconds.
        board: The JSON form of `edge_kit.host.board.Board`.
        model: Of the bundle.
        effort: What was asked for: ``runs``, ``warmup``, ``max_secs``, ``frames``.
        round_trip: None when no broker was given.
        planned: Configurations that were to be measured; more than there are after an interrupt.
    """

    version: str
    measured_at: float
    board: Mapping[str, Any]
    model: Model
    effort: Mapping[str, Any]
    measurements: tuple[Measurement, ...]
    round_trip: RoundTrip | None = None
    planned: int | None = None

    @property
    def interrupted(self) -> bool:
        """Return whether some configurations were left out by an interrupt."""
        return self.planned is not None and len(self.measurements) < self.planned

    @property
    def board_name(self) -> str:
        """Return what people call the board."""
        return str(self.board.get("model") or self.board.get("arch") or "unknown board")

    def version_with(self, measurement: Measurement) -> str:
        """Return the versions of edge-kit and of an engine."""
        return ", ".join(filter(None, (self.version, measurement.runtime)))

    @property
    def fastest(self) -> Measurement | None:
        """Return the end model with the smallest median; None when none could be measured."""
        ends = [
            (m.inference.p50, m) for m in self.measurements
            if m.inference is not None and m.configuration.role == "end"
        ]  # fmt: skip
        return min(ends, key=lambda pair: pair[0])[1] if ends else None

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        data = to_json(self)
        not_started = to_json(Conditions())
        for m in data["measurements"]:
            if m["conditions"] == not_started:
                m["conditions"] = {}
        return {"kind": KIND, "schema": SCHEMA, **data}

    @classmethod
    def read(cls, path: Path) -> BenchReport:
        """Read a file that ``edge-kit bench --json`` wrote.

        Raises:
            UsageError: It is missing, not a benchmark, or of another schema.
        """
        hint = "give files that were written with: edge-kit bench BUNDLE --json > FILE"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror or error})", hint) from None
        except ValueError as error:
            raise UsageError(f"{path} is not a benchmark: it is not JSON ({error})", hint) from None
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise UsageError(f"{path} is not a benchmark of edge-kit", hint)
        if data.get("schema") != SCHEMA:
            raise UsageError(
                f"{path} has schema {data.get('schema')!r}, this edge-kit reads schema {SCHEMA}",
                "update edge-kit, or measure again",
            )
        return from_json(cls, data, str(path), error=lambda text: UsageError(text, "measure again"))
