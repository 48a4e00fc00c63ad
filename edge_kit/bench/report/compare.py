"""Rank several boards or versions, where that is fair, and say why where it is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from edge_kit.bench.measure.measurement import Configuration, Measurement
from edge_kit.bench.report.accuracy import Accuracy, Contender, any_ranked, compare_accuracy
from edge_kit.bench.report.report import BenchReport
from edge_kit.errors import UsageError
from edge_kit.records import to_json

__all__ = ["Comparison", "Entry", "Group", "compare"]

# Medians nearer than this share a rank; repeated runs on one quiet board differ by as much.
TIE = 0.05
FEWEST_CALLS = 20


@dataclass(frozen=True)
class Entry(Contender):
    """One measurement among comparable ones."""

    measurement: Measurement

    @property
    def p50(self) -> float:
        """Median, milliseconds; infinite where it failed."""
        inference = self.measurement.inference
        return float("inf") if inference is None else inference.p50


@dataclass(frozen=True)
class Group:
    """Measurements of the same work: one model, engine, precision and number of threads.

    Attributes:
        model: First 16 digits of the model hash.
        configuration: Any of them.
        entries: Ranked ones first, fastest first.
    """

    model: str
    configuration: Configuration
    entries: Sequence[Entry]

    @property
    def title(self) -> str:
        """Return what they have in common."""
        return f"{self.configuration.full_title}, model {self.model}"


@dataclass(frozen=True)
class Comparison:
    """What came out.

    Attributes:
        groups: Speed; those with a ranking first.
        accuracy: Top-1, a group for each set of photos; those with a ranking first.
    """

    groups: Sequence[Group]
    accuracy: Sequence[Accuracy] = ()

    @property
    def ranked(self) -> bool:
        """Return whether anything could be ranked."""
        return self.speed_ranked or any(any_ranked(group.entries) for group in self.accuracy)

    @property
    def speed_ranked(self) -> bool:
        """Return whether any two are told apart by their speed."""
        return any(any_ranked(group.entries) for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        return {
            "groups": [_group_json(g) for g in self.groups],
            "accuracy": [a.to_json() for a in self.accuracy],
        }


def compare(reports: Mapping[str, BenchReport]) -> Comparison:
    """Sort the measurements of labelled reports into groups of the same work, and rank in each.

    Raises:
        UsageError: There are fewer than two.
    """
    if len(reports) < 2:
        raise UsageError("one benchmark cannot be compared", "give two files or more")
    works: dict[_Work, list[Entry]] = {}
    for label, report in reports.items():
        for m in report.measurements:
            entry = Entry(label, report.board_name, report.version_with(m), m, unfit=_unfit(m))
            works.setdefault(_Work.of(report, m.configuration), []).append(entry)
    groups = [
        Group(work.model[:16], entries[0].measurement.configuration, _rank(work, entries, works))
        for work, entries in works.items()
    ]
    return Comparison(
        sorted(groups, key=lambda g: not any_ranked(g.entries)), compare_accuracy(reports)
    )


class _Work(NamedTuple):
    """What measurements must share to be ranked."""

    model: str
    kind: tuple[str, str, str]
    threads: int

    @classmethod
    def of(cls, report: BenchReport, c: Configuration) -> _Work:
        return cls(report.model.model_hash, (c.role, c.engine, c.precision), c.threads)


def _unfit(m: Measurement) -> str:
    """Return why a measurement says nothing about its board."""
    if m.inference is None:
        return f"failed: {m.error}"
    if m.conditions.marks:
        return "; ".join(m.conditions.marks)
    if m.inference.count < FEWEST_CALLS:
        return f"only {m.inference.count} calls, fewer than {FEWEST_CALLS}"
    return ""


def _rank(
    work: _Work, entries: Sequence[Entry], works: Mapping[_Work, Sequence[Entry]]
) -> list[Entry]:
    fit = sorted((e for e in entries if not e.unfit), key=lambda e: e.p50)
    unfit = [e for e in entries if e.unfit]
    # A bundle may hold two files for one engine: comparing those does not compare boards.
    if len({e.label for e in fit}) < 2:
        return [*(replace(e, unfit=_why_alone(work, e, works)) for e in fit), *unfit]
    # One behind all that are faster by more than the tie.
    ranks = [1 + sum(o.p50 * (1 + TIE) < e.p50 for o in fit) for e in fit]
    return [*(replace(e, rank=rank) for e, rank in zip(fit, ranks, strict=True)), *unfit]


def _why_alone(work: _Work, entry: Entry, works: Mapping[_Work, Sequence[Entry]]) -> str:
    """Return what the other files lack of the work of this one."""
    others = [w for w, found in works.items() if any(e.label != entry.label for e in found)]
    if not any(w.model == work.model for w in others):
        return "no other file measured this model"
    if not any(w[:2] == work[:2] for w in others):
        return f"no other file measured {entry.measurement.configuration.title} of this model"
    if work not in others:
        return f"no other file measured {entry.measurement.configuration.full_title}"
    return "nothing fit to be ranked against it"


def _group_json(group: Group) -> dict[str, Any]:
    entries = [
        {**e.to_json(), "inference_ms": to_json(e.measurement.inference)} for e in group.entries
    ]
    c = group.configuration
    return {"model": group.model, **c.work, "threads": c.threads, "entries": entries}
