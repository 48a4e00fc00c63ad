"""All that one run of ``edge-kit bench`` found. The JSON form: ``docs/benchmark.md``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_kit.bench.measure.measurement import Measurement
from edge_kit.bench.measure.roundtrip import RoundTrip
from edge_kit.errors import UsageError

__all__ = ["KIND", "SCHEMA", "BenchReport"]

KIND = "edge-kit-bench"
SCHEMA = 1


@dataclass(frozen=True)
class BenchReport:
    """One board, one bundle, any number of configurations.

    Attributes:
        version: Of edge-kit.
        measured_at: Unix time of the start, seconds.
        board: The JSON form of `edge_kit.host.board.Board`.
        model: ``name``, ``model_hash`` and ``threshold`` of the bundle.
        effort: What was asked for: ``runs``, ``warmup``, ``max_secs``, ``frames``.
        measurements: One a configuration.
        round_trip: None when no broker was given.
        planned: Configurations that were to be measured; more than there are after an interrupt.
    """

    version: str
    measured_at: float
    board: Mapping[str, Any]
    model: Mapping[str, Any]
    effort: Mapping[str, Any]
    measurements: Sequence[Measurement]
    round_trip: RoundTrip | None = None
    planned: int | None = None

    @property
    def interrupted(self) -> bool:
        """Return whether some configurations were left out by an interrupt."""
        return self.planned is not None and len(self.measurements) < self.planned

    @property
    def model_hash(self) -> str:
        """Of the bundle, hexadecimal."""
        return str(self.model["model_hash"])

    @property
    def board_name(self) -> str:
        """Return what people call the board."""
        return str(self.board.get("model") or self.board.get("arch") or "unknown board")

    @property
    def fastest(self) -> Measurement | None:
        """Return the end model with the smallest median; None when none could be measured."""
        ends = [
            m for m in self.measurements
            if m.inference is not None and m.configuration.role == "end"
        ]  # fmt: skip
        return min(ends, key=_p50, default=None)

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        return {
            "kind": KIND,
            "schema": SCHEMA,
            "version": self.version,
            "measured_at": round(self.measured_at, 3),
            "board": dict(self.board),
            "model": dict(self.model),
            "effort": dict(self.effort),
            "measurements": [m.to_json() for m in self.measurements],
            "round_trip": self.round_trip and self.round_trip.to_json(),
            "planned": self.planned,
        }

    @classmethod
    def read(cls, path: Path) -> BenchReport:
        """Read a file that ``edge-kit bench --json`` wrote.

        Raises:
            UsageError: It is missing, no such file, or of a newer schema.
        """
        hint = "give files that were written with: edge-kit bench BUNDLE --json > FILE"
        try:
            text = path.read_text(encoding="utf-8")
            if not text.strip():
                raise UsageError(f"{path} is empty: that run wrote nothing", "measure again")
            data = json.loads(text)
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error.strerror or error})", hint) from None
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path} cannot be read as a benchmark ({error})", hint) from None
        if not isinstance(data, dict) or data.get("kind") != KIND:
            raise UsageError(f"{path} is no benchmark of edge-kit", hint)
        schema = data.get("schema")
        if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
            raise UsageError(f"{path} states no schema version", "measure again")
        if schema > SCHEMA:
            raise UsageError(
                f"{path} has schema {schema}, this edge-kit reads up to {SCHEMA}", "update edge-kit"
            )
        try:
            return cls._parse(data)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UsageError(f"{path} is damaged ({error!r})", "measure again") from None

    @classmethod
    def _parse(cls, data: Mapping[str, Any]) -> BenchReport:
        trip, model, planned = data["round_trip"], dict(data["model"]), data.get("planned")
        return cls(
            version=str(data["version"]),
            measured_at=float(data["measured_at"]),
            board=dict(data["board"]),
            model={**model, "name": str(model["name"]), "model_hash": str(model["model_hash"])},
            effort=dict(data["effort"]),
            measurements=tuple(Measurement.from_json(m) for m in data["measurements"]),
            round_trip=None if trip is None else RoundTrip.from_json(trip),
            planned=None if planned is None else int(planned),
        )


def _p50(measurement: Measurement) -> float:
    return float("inf") if measurement.inference is None else measurement.inference.p50
