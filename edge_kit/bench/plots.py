"""Plots of a benchmark as inline SVG, so that a page needs neither network nor library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from edge_kit.bench.latency import Latency

__all__ = ["COLOURS", "Series", "calls_over_time", "latency_bars", "stage_bars"]

COLOURS = ("#33658a", "#c9803c", "#5b8c5a", "#8a4f7d", "#7a6a3a", "#2f8f9d", "#b0413e", "#55606e")

_WIDTH, _LEFT, _ROW = 760, 230, 30


@dataclass(frozen=True)
class Series:
    """Values in order, with a name.

    Attributes:
        name: For the legend.
        values: Milliseconds.
    """

    name: str
    values: Sequence[float]


def latency_bars(rows: Sequence[tuple[str, Latency]]) -> str:
    """Draw p50 as bars, the way to p90 as a thick line and to p99 as a thin one."""
    top = max((t.p99 for _, t in rows), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - 70) / top
    parts = []
    for i, (name, t) in enumerate(rows):
        y, p50 = 8 + i * _ROW, _LEFT + t.p50 * scale
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LEFT}" y="{y}" width="{t.p50 * scale:.1f}" height="20" '
            f'fill="{COLOURS[0]}"><title>{_times(t)}</title></rect>'
            f'<path d="M{p50:.1f} {y + 10}H{_LEFT + t.p90 * scale:.1f}" '
            f'stroke="{COLOURS[1]}" stroke-width="5"/>'
            f'<path d="M{_LEFT + t.p90 * scale:.1f} {y + 10}H{_LEFT + t.p99 * scale:.1f}" '
            f'stroke="{COLOURS[1]}" stroke-width="1.5"/>'
            f'<text x="{_LEFT + t.p99 * scale + 6:.1f}" y="{y + 15}">{t.p50:.2f}</text>'
        )
    return _svg(parts, 12 + len(rows) * _ROW, "latency of each configuration")


def calls_over_time(series: Sequence[Series]) -> str:
    """Draw every call in order: a board that throttles climbs, one that is disturbed is jagged."""
    height, bottom = 240, 210
    longest = max((len(s.values) for s in series), default=0)
    # The slowest hundredth would flatten the rest.
    everything = sorted(v for s in series for v in s.values)
    top = everything[int(0.99 * (len(everything) - 1))] * 1.1 if everything else 1.0
    parts = []
    for k in range(5):
        y = bottom - k * (bottom - 10) / 4
        parts.append(
            f'<path d="M50 {y:.1f}H{_WIDTH - 10}" stroke="#dde5ea"/>'
            f'<text x="44" y="{y + 4:.1f}" text-anchor="end">{k * top / 4:.3g}</text>'
        )
    step = (_WIDTH - 60) / max(1, longest - 1)
    for i, s in enumerate(series):
        points = " ".join(
            f"{50 + n * step:.1f},{bottom - min(v, top) / top * (bottom - 10):.1f}"
            for n, v in enumerate(s.values)
        )
        colour = COLOURS[i % len(COLOURS)]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}"/>'
            + _legend(i, s.name, height, colour)
        )
    rows = (len(series) + 2) // 3
    return _svg(parts, height + 20 * rows, "milliseconds of each call, in order")


def stage_bars(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Draw where the time of a frame goes, a bar a configuration."""
    names = list(dict.fromkeys(name for _, stages in rows for name in stages))
    top = max((sum(stages.values()) for _, stages in rows), default=0.0) or 1.0
    scale = (_WIDTH - _LEFT - 70) / top
    parts = []
    for i, (title, stages) in enumerate(rows):
        x, y = float(_LEFT), 8 + i * _ROW
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(title)}</text>')
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
    return _svg(parts, height + 20 * ((len(names) + 2) // 3), "stages of the pipeline")


def _legend(index: int, name: str, top: int, colour: str) -> str:
    x, y = 50 + (index % 3) * 235, top + 20 * (index // 3)
    return (
        f'<rect x="{x}" y="{y}" width="14" height="10" fill="{colour}"/>'
        f'<text x="{x + 20}" y="{y + 10}">{escape(name)}</text>'
    )


def _times(t: Latency) -> str:
    return f"p50 {t.p50:.3f}, p90 {t.p90:.3f}, p99 {t.p99:.3f}, min {t.minimum:.3f} ms"


def _svg(parts: Sequence[str], height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"{''.join(parts)}</svg>"
    )
