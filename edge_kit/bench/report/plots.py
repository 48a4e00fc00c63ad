"""Plots of a benchmark as inline SVG, so that a page needs neither network nor library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.score import Score

__all__ = ["COLOURS", "Series", "latency_bars", "lines", "score_bars", "stage_bars"]

COLOURS = ("#33658a", "#c9803c", "#5b8c5a", "#8a4f7d", "#7a6a3a", "#2f8f9d", "#b0413e", "#55606e")

# Names as long as "onnx float32, whole model, 4 threads" have to fit beside bars and in a legend.
_WIDTH, _LEFT, _ROW, _COLUMNS = 860, 265, 30, 3
_LABEL = 70


@dataclass(frozen=True)
class Series:
    """Values in order, with a name.

    Attributes:
        name: For the legend.
        values: Of one unit; None where there is none.
    """

    name: str
    values: Sequence[float | None]


def latency_bars(rows: Sequence[tuple[str, Latency]]) -> str:
    """Draw p50 as bars, the way to p90 as a thick line and to p99 as a thin one."""
    top = max((t.p99 for _, t in rows), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _LABEL) / top
    parts = []
    for i, (name, t) in enumerate(rows):
        y, p50 = 8 + i * _ROW, _LEFT + t.p50 * scale
        parts.append(
            f"{_row_name(name, y)}"
            f'<rect x="{_LEFT}" y="{y}" width="{t.p50 * scale:.1f}" height="20" '
            f'fill="{COLOURS[0]}"><title>{_times(t)}</title></rect>'
            f'<path d="M{p50:.1f} {y + 10}H{_LEFT + t.p90 * scale:.1f}" '
            f'stroke="{COLOURS[1]}" stroke-width="5"/>'
            f'<path d="M{_LEFT + t.p90 * scale:.1f} {y + 10}H{_LEFT + t.p99 * scale:.1f}" '
            f'stroke="{COLOURS[1]}" stroke-width="1.5"/>'
            f'<text x="{_LEFT + t.p99 * scale + 6:.1f}" y="{y + 15}">{t.p50:.2f}</text>'
        )
    return _svg(parts, 12 + len(rows) * _ROW, "latency of each configuration")


def score_bars(rows: Sequence[tuple[str, Score]]) -> str:
    """Draw each share as a dot on its interval, from the lowest end of all to 1."""
    low = min((s.low for _, s in rows), default=0.0)
    low = math.floor(low * 10) / 10
    scale = (_WIDTH - _LEFT - _LABEL) / (1 - low or 1.0)
    bottom = 8 + len(rows) * _ROW
    parts = []
    for tick in range(round(low * 10), 11):
        x = _LEFT + (tick / 10 - low) * scale
        parts.append(
            f'<path d="M{x:.1f} 4V{bottom}" stroke="#dde5ea"/>'
            f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{tick / 10:g}</text>'
        )
    for i, (name, s) in enumerate(rows):
        y = 8 + i * _ROW
        a, dot, b = (_LEFT + (v - low) * scale for v in (s.low, s.share, s.high))
        parts.append(
            f"{_row_name(name, y)}"
            f'<path d="M{a:.1f} {y + 10}H{b:.1f}" stroke="{COLOURS[0]}" stroke-width="3"/>'
            f'<circle cx="{dot:.1f}" cy="{y + 10}" r="6" fill="{COLOURS[0]}">'
            f"<title>{s.right} of {s.total}</title></circle>"
            f'<text x="{_WIDTH - _LABEL + 10}" y="{y + 15}">{s.share:.3f}</text>'
        )
    return _svg(parts, bottom + 22, "top-1 of each configuration with its interval")


def lines(series: Sequence[Series], title: str, *, from_zero: bool = True) -> str:
    """Draw values in order; the slowest hundredth is cut off, which would flatten the rest.

    Args:
        series: One line each.
        title: What they are, with the unit.
        from_zero: Begin the scale at 0, not at the smallest value.
    """
    bottom, height = 210, 240
    everything = sorted(v for s in series for v in s.values if v is not None)
    high = everything[int(0.99 * (len(everything) - 1))] if everything else 1.0
    low = 0.0 if from_zero or not everything else everything[0]
    step = _nice((high - low) / 4 or abs(high) / 4 or 1.0)
    low = math.floor(low / step) * step
    top = max(math.ceil(high * 1.02 / step) * step, low + step)
    scale = (bottom - 10) / (top - low)
    parts = []
    for k in range(round((top - low) / step) + 1):
        y = bottom - k * step * scale
        parts.append(
            f'<path d="M50 {y:.1f}H{_WIDTH - 10}" stroke="#dde5ea"/>'
            f'<text x="44" y="{y + 4:.1f}" text-anchor="end">{low + k * step:g}</text>'
        )
    longest = max((len(s.values) for s in series), default=0)
    across = (_WIDTH - 60) / max(1, longest - 1)
    for i, s in enumerate(series):
        points = " ".join(
            f"{50 + n * across:.1f},{bottom - (min(v, top) - low) * scale:.1f}"
            for n, v in enumerate(s.values) if v is not None
        )  # fmt: skip
        colour = COLOURS[i % len(COLOURS)]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>'
            + _legend(i, s.name, height, colour)
        )
    parts.append(f'<text x="50" y="{bottom + 16}">1</text>')
    parts.append(f'<text x="{_WIDTH - 10}" y="{bottom + 16}" text-anchor="end">{longest}</text>')
    return _svg(parts, height + _legend_height(len(series)), title)


def stage_bars(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Draw where the time of a frame goes, a bar a configuration."""
    names = list(dict.fromkeys(name for _, stages in rows for name in stages))
    top = max((sum(stages.values()) for _, stages in rows), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - _LABEL) / top
    parts = []
    for i, (title, stages) in enumerate(rows):
        x, y = float(_LEFT), 8 + i * _ROW
        parts.append(_row_name(title, y))
        for name, ms in stages.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{ms * scale:.1f}" height="20" fill="{colour}">'
                f"<title>{escape(name)} {ms:.3f} ms</title></rect>"
            )
            x += ms * scale
        parts.append(f'<text x="{x + 6:.1f}" y="{y + 15}">{sum(stages.values()):.2f}</text>')
    height = 16 + len(rows) * _ROW
    parts += [_legend(i, n, height, COLOURS[i % len(COLOURS)]) for i, n in enumerate(names)]
    return _svg(parts, height + _legend_height(len(names)), "stages of the pipeline")


def _nice(step: float) -> float:
    """Return the next of 1, 2, 2.5, 5 times a power of ten."""
    power = float(10 ** math.floor(math.log10(step)))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= step * 0.999)


def _row_name(name: str, y: int) -> str:
    return f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'


def _legend(index: int, name: str, top: int, colour: str) -> str:
    x = 50 + index % _COLUMNS * (_WIDTH - 50) // _COLUMNS
    y = top + 20 * (index // _COLUMNS)
    return (
        f'<rect x="{x}" y="{y}" width="14" height="10" fill="{colour}"/>'
        f'<text x="{x + 20}" y="{y + 10}">{escape(name)}</text>'
    )


def _legend_height(count: int) -> int:
    return 20 * math.ceil(count / _COLUMNS)


def _times(t: Latency) -> str:
    return f"p50 {t.p50:.3f}, p90 {t.p90:.3f}, p99 {t.p99:.3f}, min {t.minimum:.3f} ms"


def _svg(parts: Sequence[str], height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
