"""What the board went through during each measurement, as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from edge_kit.bench.conditions.state import Throttling
from edge_kit.bench.measure.measurement import Measurement

__all__ = ["background"]

_HEAD = ("model", "°C before", "°C most", "°C after", "MHz before", "MHz least", "MHz most",
             "MHz after", "other load, cores", "throttling")  # fmt: skip


def background(measurements: Sequence[Measurement]) -> list[tuple[str, ...]]:
    """Return the head and a row for each measurement, without what the board does not tell.

    Empty when it tells nothing. The first column names the measurement, the last is text.
    """
    rows = [_row(m) for m in measurements if m.conditions.during.looks]
    told = [i for i in range(1, len(_HEAD)) if any(r[i] for r in rows)]
    if not told:
        return []
    return [tuple(r[i] for i in (0, *told)) for r in (_HEAD, *rows)]


def _row(m: Measurement) -> tuple[str, ...]:
    before, during, after = m.conditions.before, m.conditions.during, m.conditions.after
    values = (
        before.temperature_c, during.temperature_max_c, after.temperature_c,
        before.clock_mhz, during.clock_min_mhz, during.clock_max_mhz, after.clock_mhz,
    )  # fmt: skip
    load = m.conditions.other_load
    cells = ["" if v is None else str(v) for v in values]
    cells.append("" if load is None else f"{load:.2f}")
    bits = _bits(before.throttled, during.throttled, after.throttled)
    return (m.configuration.full_title, *cells, bits)


def _bits(*states: str | None) -> str:
    """Return a Raspberry Pi's bits in words: what is equal is said once, zeros only alone."""
    said: dict[str, list[str]] = {}
    for when, state in zip(("before", "during", "after"), states, strict=True):
        bits = Throttling.parse(state or "")
        if bits is not None:
            said.setdefault(f"{bits}: {bits.sentence()}", []).append(when)
    if len(said) == 1:
        return next(iter(said))
    told = ((text, when) for text, when in said.items() if not text.startswith("0x0:"))
    return "; ".join(f"{' and '.join(when)} {text}" for text, when in told)
