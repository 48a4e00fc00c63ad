"""A comparison as text."""

from __future__ import annotations

from edge_kit.bench.compare import Comparison, Entry, Group

__all__ = ["standings"]


def standings(found: Comparison) -> str:
    """Return each group with its ranking, and why the rest is not ranked."""
    return "\n\n".join("\n".join(_lines(group)) for group in found.groups)


def _lines(group: Group) -> list[str]:
    ranked = [e for e in group.entries if e.rank is not None]
    best = min((p50 for e in ranked if (p50 := _p50(e)) is not None), default=None)
    return [group.title, *(_line(e, best) for e in group.entries)]


def _line(entry: Entry, best: float | None) -> str:
    p50, ratio, place = _p50(entry), "", "-"
    if entry.rank is not None and p50 is not None and best:
        ratio, place = f"{p50 / best:.2f} x", f"{entry.rank}."
    time = "" if p50 is None else f"{p50:.2f} ms"
    who = f"{entry.label} ({entry.board}; {entry.version})"
    why = f", not ranked: {entry.unfit}" if entry.unfit else ""
    return f"{place:>4}{time:>13}{ratio:>9}  {who}{why}"


def _p50(entry: Entry) -> float | None:
    inference = entry.measurement.inference
    return None if inference is None else inference.p50
