"""Charts as inline SVG, drawn here so that a page needs neither network nor plotting library.

Colours come from ``templates/page.css``: series and parts are numbered from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import ClassVar, Literal

__all__ = ["Axis", "Bar", "Drawing", "Line", "Row", "Span", "matrix", "plot", "row_chart", "stack"]

WIDE = 820
_COLOURS = 8
_LEFT, _RIGHT, _TOP, _BOTTOM, _HEIGHT = 56, 16, 14, 44, 280
# Names as long as "onnx float32, whole model, 4 threads" have to fit beside bars and in a legend.
_NAMES, _VALUES, _ROW, _LEGEND_COLUMNS = 265, 90, 30, 3


@dataclass(frozen=True)
class Drawing:
    """Inline SVG, which a template takes as it is."""

    kind: ClassVar[str] = "drawing"
    svg: str

    def __html__(self) -> str:
        """Return the SVG; Jinja2 asks for it instead of escaping."""
        return self.svg


@dataclass(frozen=True)
class Axis:
    """A scale.

    Attributes:
        label: What it measures, with the unit.
        low: The value at its start.
        high: The value at its end, above `low`.
        form: Of the numbers beside its ticks, as `format` takes it.
    """

    label: str
    low: float = 0.0
    high: float = 1.0
    form: str = "g"

    @classmethod
    def over(cls, label: str, values: Iterable[float], *, from_zero: bool = True) -> Axis:
        """Return an axis with round ends that holds all values."""
        known = list(values) or [1.0]
        high, low = max(known), 0.0 if from_zero else min(known)
        step = _step(high - low or abs(high) or 1.0)
        low = math.floor(low / step) * step
        return cls(label, low, max(math.ceil(high / step) * step, low + step))

    def share(self, value: float) -> float:
        """Return where a value lies, 0 to 1; values beyond the ends are moved to them."""
        return (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        """Round values, about five."""
        step = _step(self.high - self.low)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(k * step, 12) for k in range(first, last + 1)]


@dataclass(frozen=True)
class Line:
    """Points in order; with `steps` each value holds until the next x."""

    name: str
    points: Sequence[tuple[float, float]]
    steps: bool = False


@dataclass(frozen=True)
class Bar:
    """An upright bar from `start` to `end`; `title` shows under the pointer, `text` above it."""

    start: float
    end: float
    height: float
    title: str
    text: str = ""


@dataclass(frozen=True)
class Span:
    """A stretch of a row: a bar, or a thick or thin line."""

    start: float
    end: float
    shape: Literal["bar", "thick", "thin"] = "bar"
    colour: int = 0
    title: str = ""


@dataclass(frozen=True)
class Row:
    """A named line of a chart: stretches, maybe a dot, and a text behind them."""

    name: str
    spans: Sequence[Span]
    text: str
    dot: float | None = None


def plot(
    x: Axis,
    y: Axis,
    *,
    lines: Sequence[Line] = (),
    bars: Sequence[Bar] = (),
    marker: float | None = None,
    marker_text: str = "",
    diagonal: bool = False,
    width: int = 460,
) -> Drawing:
    """Draw lines and upright bars over two axes; several lines get a legend.

    Args:
        x: Scale to the right.
        y: Scale upwards.
        lines: Values outside the axes are moved to their ends.
        bars: Likewise.
        marker: An x that an upright line marks, if it lies on the axis.
        marker_text: Stands beside that line.
        diagonal: Mark where both axes have the same share.
        width: Of the drawing; `WIDE` for long series.
    """
    right, bottom = width - _RIGHT, _HEIGHT - _BOTTOM

    def px(value: float) -> float:
        return _LEFT + x.share(value) * (right - _LEFT)

    def py(value: float) -> float:
        return bottom - y.share(value) * (bottom - _TOP)

    parts = []
    for tick in y.ticks:
        at = py(tick)
        parts.append(f'<path class="rule" d="M{_LEFT} {at:.1f}H{right}"/>')
        parts.append(_text(_LEFT - 6, at + 4, format(tick, y.form), "end", "label"))
    parts += [_text(px(t), bottom + 16, format(t, x.form), "middle", "label") for t in x.ticks]
    parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 8, x.label, "middle", "label"))
    turn = f"translate(12 {(bottom + _TOP) / 2}) rotate(-90)"
    parts.append(
        f'<text class="label" transform="{turn}" text-anchor="middle">{escape(y.label)}</text>'
    )
    for bar in bars:
        top, start, end = py(bar.height), px(bar.start), px(bar.end)
        parts.append(
            f'<rect class="bar c0" x="{start + 1:.1f}" y="{top:.1f}" width="{end - start - 2:.1f}" '
            f'height="{bottom - top:.1f}"><title>{escape(bar.title)}</title></rect>'
        )
        parts.append(_text((start + end) / 2, top - 3, bar.text, "middle"))
    for i, line in enumerate(lines):
        points: list[tuple[float, float]] = []
        for a, b in line.points:
            if line.steps and points:
                points.append((px(a), points[-1][1]))
            points.append((px(a), py(b)))
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline class="line c{i % _COLOURS}" points="{path}"/>')
    if diagonal:
        parts.append(f'<path class="marker" d="M{_LEFT} {bottom}L{right} {_TOP}"/>')
    if marker is not None and x.low <= marker <= x.high:
        at, beyond = px(marker), x.share(marker) > 0.5
        parts.append(f'<path class="marker" d="M{at:.1f} {_TOP}V{bottom}"/>')
        parts.append(_text(at + (-6 if beyond else 6), _TOP + 10, marker_text,
                           "end" if beyond else "start"))  # fmt: skip
    names = [line.name for line in lines] if len(lines) > 1 else []
    return _drawing(parts, width, _HEIGHT, f"{y.label} against {x.label}", names)


def row_chart(rows: Sequence[Row], axis: Axis, legend: Sequence[str] = ()) -> Drawing:
    """Draw named rows under each other over one scale.

    Args:
        rows: First on top.
        axis: Of all stretches and dots; its ticks are drawn only if it does not start at 0.
        legend: What the colours mean, from 0.
    """
    bottom, across = 8 + len(rows) * _ROW, WIDE - _NAMES - _VALUES
    parts = []
    if axis.low:
        for tick in axis.ticks:
            at = _NAMES + axis.share(tick) * across
            parts.append(f'<path class="rule" d="M{at:.1f} 4V{bottom}"/>')
            parts.append(_text(at, bottom + 14, format(tick, axis.form), "middle", "label"))
    for i, row in enumerate(rows):
        y, end = 8 + i * _ROW, float(_NAMES)
        parts.append(_text(_NAMES - 8, y + 15, row.name, "end"))
        for span in row.spans:
            start, end = (_NAMES + axis.share(v) * across for v in (span.start, span.end))
            look = f'class="{span.shape} c{span.colour % _COLOURS}"'
            title = f"<title>{escape(span.title)}</title>" if span.title else ""
            if span.shape == "bar":
                size = f'y="{y}" width="{end - start:.1f}" height="20"'
                parts.append(f'<rect {look} x="{start:.1f}" {size}>{title}</rect>')
            else:
                parts.append(f'<path {look} d="M{start:.1f} {y + 10}H{end:.1f}">{title}</path>')
        if row.dot is not None:
            at = _NAMES + axis.share(row.dot) * across
            parts.append(f'<circle class="bar c0" cx="{at:.1f}" cy="{y + 10}" r="6"/>')
        parts.append(_text(end + 8, y + 15, row.text))
    return _drawing(parts, WIDE, bottom + (22 if axis.low else 8), axis.label, legend)


def stack(parts: Mapping[str, float], names: Sequence[str], form: str) -> list[Span]:
    """Return bars one behind the other, coloured by their place in `names`."""
    spans, at = [], 0.0
    for name, value in parts.items():
        title = f"{name} {format(value, form)}"
        spans.append(Span(at, at + value, colour=names.index(name), title=title))
        at += value
    return spans


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Drawing:
    """Draw how often each name (row) was taken for each name (column).

    Args:
        counts: A row for each name, with a count for each name.
        names: Long ones are cut.
    """
    cell = max(14, min(34, 520 // len(names)))
    margin = 100
    size = margin + cell * len(names) + 8
    parts = []
    for i, (name, row) in enumerate(zip(names, counts, strict=True)):
        middle, whole = margin + cell * (i + 0.5) + 4, max(1, sum(row))
        short = name if len(name) <= 13 else name[:12] + "…"
        turn = f"translate({middle:.1f} {margin - 6}) rotate(-60)"
        parts.append(_text(margin - 6, middle, short, "end"))
        parts.append(f'<text transform="{turn}">{escape(short)}</text>')
        for j, count in enumerate(row):
            x, y = margin + cell * j, margin + cell * i
            title = f"{escape(name)} taken for {escape(names[j])}: {count} of {whole}"
            parts.append(
                f'<rect class="{"right" if i == j else "wrong"}" x="{x}" y="{y}" '
                f'width="{cell - 1}" height="{cell - 1}" '
                f'fill-opacity="{count / whole if count else 0.04:.3f}"><title>{title}</title>'
                "</rect>"
            )
            if count and cell >= 20:
                parts.append(_text(x + cell / 2 - 0.5, y + cell / 2 + 4, str(count), "middle"))
    return _drawing(parts, size, size, "confusion matrix", ())


def _step(span: float) -> float:
    """Return about a fifth of a span: 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= span / 5 * 0.999)


def _text(x: float, y: float, text: str, anchor: str = "start", look: str = "") -> str:
    if not text:
        return ""
    kind = f' class="{look}"' if look else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _drawing(
    parts: Sequence[str], width: int, height: int, title: str, legend: Sequence[str]
) -> Drawing:
    """Put a drawing together, with a legend below it."""
    entries = []
    for i, name in enumerate(legend):
        x = 50 + i % _LEGEND_COLUMNS * (width - 50) // _LEGEND_COLUMNS
        y = height + 4 + 20 * (i // _LEGEND_COLUMNS)
        size = 'width="14" height="10"'
        entries.append(f'<rect class="bar c{i % _COLOURS}" x="{x}" y="{y}" {size}/>')
        entries.append(_text(x + 20, y + 10, name))
    height += 20 * math.ceil(len(legend) / _LEGEND_COLUMNS)
    return Drawing(
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
        f'style="max-width:{width}px">{"".join([*parts, *entries])}</svg>'
    )
