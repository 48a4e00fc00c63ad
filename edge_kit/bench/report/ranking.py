"""A comparison as text."""

from __future__ import annotations

from edge_kit.bench.report.accuracy import Answers, Contender
from edge_kit.bench.report.compare import Comparison, Entry, Group
from edge_kit.device.output import printable

__all__ = ["ranking"]


def ranking(found: Comparison) -> str:
    """Return each group with its ranking, and why the rest is not ranked."""
    parts = [_lines(group) for group in found.groups]
    parts += [[a.title, *map(_answers_line, a.entries)] for a in found.accuracy]
    # The files may come from elsewhere; control characters in them must not reach a terminal.
    return "\n\n".join("\n".join(map(printable, lines)) for lines in parts)


def _answers_line(entry: Answers) -> str:
    s = entry.score
    share = f"{s.right} of {s.total}, {s.share:.3f} ({s.low:.2f}-{s.high:.2f})"
    numbers = ", ".join(map(str, entry.threads))
    plural = "" if entry.threads == (1,) else "s"
    what = f"{entry.configuration.title}, {numbers} thread{plural}"
    same = f", {entry.alike} of {s.total} answered as by the first"
    return _row(entry, f"  {share}", f", {what}{'' if entry.alike is None else same}")


def _lines(group: Group) -> list[str]:
    best = min((e.p50 for e in group.entries if e.rank is not None), default=0.0)
    return [group.title, *(_line(e, best) for e in group.entries)]


def _line(entry: Entry, best: float) -> str:
    time = "" if entry.measurement.inference is None else f"{entry.p50:.2f} ms"
    ratio = f"{entry.p50 / best:.2f} x" if entry.rank is not None and best else ""
    return _row(entry, f"{time:>13}{ratio:>9}", "")


def _row(entry: Contender, figures: str, what: str) -> str:
    place = "-" if entry.rank is None else f"{entry.rank}."
    why = f", not ranked: {entry.unfit}" if entry.unfit else ""
    return f"{place:>4}{figures}  {entry.label} ({entry.board}; {entry.version}){what}{why}"
