"""Rank top-1 where the same photos were asked, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edge_kit.bench.measure.measurement import Configuration
from edge_kit.bench.measure.score import LabelledSet, Score
from edge_kit.bench.report.report import BenchReport
from edge_kit.records import to_json

__all__ = ["Accuracy", "Answers", "Contender", "any_ranked", "better", "compare_accuracy"]

SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Contender:
    """What one file has to show among comparable results.

    Attributes:
        label: The file's name.
        board: The board's.
        version: Of edge-kit and of the engine.
        unfit: Why it is not ranked; empty when it is.
        rank: From 1; None when it is not ranked.
    """

    label: str
    board: str
    version: str
    unfit: str = field(default="", kw_only=True)
    rank: int | None = field(default=None, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """Return the keys that every entry of a comparison has."""
        return {key: getattr(self, key) for key in ("label", "board", "version", "rank", "unfit")}


def any_ranked(entries: Iterable[Contender]) -> bool:
    """Return whether a ranking came about."""
    return any(e.rank is not None for e in entries)


@dataclass(frozen=True)
class Answers(Contender):
    """What one model file on one board answered; the threads that gave the same are put together.

    Attributes:
        configuration: One of them.
        threads: All numbers of threads that gave these answers.
        score: Right ones.
        answers: Class index of each photo, in the order of the set.
        alike: Photos that are answered as by the first of the group.
    """

    configuration: Configuration
    threads: tuple[int, ...]
    score: Score
    answers: tuple[int, ...]
    alike: int | None = None


@dataclass(frozen=True)
class Accuracy:
    """Answers on one set of photos.

    Attributes:
        labelled: The set; None for results that do not say on which photos.
        entries: Most right answers first.
    """

    labelled: LabelledSet | None
    entries: Sequence[Answers]

    @property
    def title(self) -> str:
        """Return it for people."""
        return f"top-1 on {self.labelled.title if self.labelled else 'photos that are not told'}"

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        return {
            "set": self.labelled and self.labelled.sha256,
            "photos": self.labelled and len(self.labelled.labels),
            "entries": [
                {
                    **e.to_json(),
                    **e.configuration.work,
                    "threads": list(e.threads),
                    "top1": to_json(e.score),
                    "alike": e.alike,
                }
                for e in self.entries
            ],
        }


def compare_accuracy(reports: Mapping[str, BenchReport]) -> list[Accuracy]:
    """Group the results of labelled reports by their photos; rank those that several share.

    Marks do not matter here: a hot or busy board is slower, not less right.
    """
    # By the labels too: a file from elsewhere may give other photos the same name.
    sets: dict[tuple[object, ...], LabelledSet | None] = {}
    found: dict[tuple[object, ...], list[Answers]] = {}
    for label, report in reports.items():
        for m in report.measurements:
            if m.top1 is None:
                continue
            name = (m.top1_set.sha256, m.top1_set.labels) if m.top1_set else ()
            sets.setdefault(name, m.top1_set)
            c = m.configuration
            who = label, report.board_name, report.version_with(m)
            entry = Answers(*who, c, (c.threads,), m.top1, m.top1_answers)
            _join(found.setdefault(name, []), entry)
    groups = [Accuracy(sets[name], _rank(sets[name], entries)) for name, entries in found.items()]
    return sorted(groups, key=lambda g: not any_ranked(g.entries))


def better(first: Sequence[int], second: Sequence[int], labels: Sequence[int]) -> bool:
    """Return whether `first` is right more often than `second`, beyond chance.

    The exact sign test over the photos on which only one of them is right (McNemar, 1947): the same
    photos were asked, so what both know says nothing.

    Args:
        first: Class index that each photo got.
        second: The same of the other.
        labels: The true class indices.
    """
    rows = list(zip(first, second, labels, strict=True))
    wins = sum(a == true != b for a, b, true in rows)
    losses = sum(b == true != a for a, b, true in rows)
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(losses + 1)) / 2**n
    return wins > losses and min(1.0, 2 * tail) < SIGNIFICANT


def _join(entries: list[Answers], new: Answers) -> None:
    """Append `new`, or its number of threads to the entry that answered the same."""
    for i, old in enumerate(entries):
        if (old.label, old.configuration.file, old.answers, old.score) == (
            new.label, new.configuration.file, new.answers, new.score,
        ):  # fmt: skip
            entries[i] = replace(old, threads=tuple(sorted({*old.threads, *new.threads})))
            return
    entries.append(new)


def _rank(labelled: LabelledSet | None, entries: Sequence[Answers]) -> list[Answers]:
    ordered = sorted(entries, key=lambda e: -e.score.share)
    if labelled is None:
        why = "the file does not say which photos were asked; measure again"
        return [replace(e, unfit=why) for e in ordered]
    if len({e.label for e in ordered}) < 2:
        why = "no other file has top-1 on these photos"
        return [replace(e, unfit=why) for e in ordered]
    first = ordered[0].answers
    return [
        replace(
            e,
            rank=1 + sum(better(o.answers, e.answers, labelled.labels) for o in ordered),
            alike=sum(a == b for a, b in zip(first, e.answers, strict=True)),
        )
        for e in ordered
    ]
