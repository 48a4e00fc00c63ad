"""Charts as inline SVG, drawn here so that a report needs neither network nor plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

__all__ = ["Line", "confusion_matrix", "line_chart", "reliability_diagram"]

WIDTH, HEIGHT = 460, 280
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 42


@dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
        name: For the legend, which a single line does without.
        x: Ascending.
        y: As long as `x`.
        colour: CSS colour or variable.
        steps: Hold each value until the next x.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str
    steps: bool = False


class _Frame:
    """Maps data to pixels and draws axes."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x0, self.x1 = x
        self.y0, self.y1 = y

    def px(self, x: float) -> float:
        return LEFT + (x - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def py(self, y: float) -> float:
        return HEIGHT - BOTTOM - (y - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)

    def axes(self, x_label: str, y_label: str, percent: bool) -> list[str]:
        parts = []
        for i in range(6):
            x = self.x0 + i / 5 * (self.x1 - self.x0)
            y = self.y0 + i / 5 * (self.y1 - self.y0)
            px, py = self.px(x), self.py(y)
            text = f"{y:.0%}" if percent else _short(y)
            right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
            parts += [
                f'<path class="grid" d="M{LEFT} {py:.1f}H{right}"/>',
                f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{text}</text>',
                f'<text x="{px:.1f}" y="{bottom + 16}" text-anchor="middle">{x:.2g}</text>',
            ]
        middle = (HEIGHT - BOTTOM + TOP) / 2
        parts += [
            f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>',
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">'
            f"{escape(x_label)}</text>",
            f'<text transform="translate(11 {middle}) rotate(-90)" text-anchor="middle">'
            f"{escape(y_label)}</text>",
        ]
        return parts


def _short(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.3g}"


def _svg(parts: Sequence[str], title: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" '
        f'style="max-width:{width}px">{"".join(parts)}</svg>'
    )


def line_chart(
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    x: tuple[float, float] = (0.0, 1.0),
    y: tuple[float, float] = (0.0, 1.0),
    percent: bool = True,
    marker: float | None = None,
) -> str:
    """Draw lines over common axes.

    Args:
        lines: Points outside the axes are clamped to them.
        x_label: Under the x axis.
        y_label: Beside the y axis.
        x: Range of the x axis.
        y: Range of the y axis.
        percent: Write y as percentages.
        marker: An x that a vertical line marks.
    """
    frame = _Frame(x, y)
    parts = frame.axes(x_label, y_label, percent)
    if marker is not None and x[0] <= marker <= x[1]:
        at = frame.px(marker)
        parts.append(f'<path class="marker" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
    for i, line in enumerate(lines):
        points: list[tuple[float, float]] = []
        for a, b in zip(line.x, line.y, strict=True):
            point = (frame.px(min(max(a, x[0]), x[1])), frame.py(min(max(b, y[0]), y[1])))
            if line.steps and points:
                points.append((point[0], points[-1][1]))
            points.append(point)
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline class="line" style="stroke:{line.colour}" points="{path}"/>')
        if len(lines) > 1:
            row = TOP + 14 + 16 * i
            parts.append(
                f'<path class="line" style="stroke:{line.colour}" d="M{LEFT + 8} {row - 4}h18"/>'
                f'<text x="{LEFT + 32}" y="{row}">{escape(line.name)}</text>'
            )
    return _svg(parts, f"{y_label} against {x_label}")


def reliability_diagram(
    confidence: NDArray[np.float64], correct: NDArray[np.bool_], bins: int = 10
) -> tuple[str, float]:
    """Draw accuracy against confidence in equal bins.

    Args:
        confidence: Probability of the chosen class, (N,).
        correct: Whether it was right, (N,).
        bins: Number of bins over 0 to 1.

    Returns:
        The drawing and the expected calibration error (Guo et al., 2017).
    """
    frame = _Frame((0.0, 1.0), (0.0, 1.0))
    parts = frame.axes("confidence", "accuracy", percent=True)
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    error = 0.0
    for b in range(bins):
        inside = which == b
        count = int(inside.sum())
        if not count:
            continue
        accuracy, sure = float(correct[inside].mean()), float(confidence[inside].mean())
        error += abs(accuracy - sure) * count / len(confidence)
        left, right = frame.px(b / bins), frame.px((b + 1) / bins)
        top = frame.py(accuracy)
        parts.append(
            f'<rect class="bar" x="{left + 1:.1f}" y="{top:.1f}" width="{right - left - 2:.1f}" '
            f'height="{frame.py(0) - top:.1f}"><title>{count} photos: confidence {sure:.2f}, '
            f"accuracy {accuracy:.2f}</title></rect>"
            f'<text x="{(left + right) / 2:.1f}" y="{top - 3:.1f}" text-anchor="middle">{count}'
            "</text>"
        )
    parts.append(
        f'<path class="marker" d="M{frame.px(0):.1f} {frame.py(0):.1f}'
        f'L{frame.px(1):.1f} {frame.py(1):.1f}"/>'
    )
    return _svg(parts, "reliability diagram"), error


def confusion_matrix(
    truth: NDArray[np.int64], decided: NDArray[np.int64], classes: Sequence[str]
) -> str:
    """Draw how often each class (row) was taken for each class (column)."""
    count = len(classes)
    table = np.zeros((count, count), np.int64)
    np.add.at(table, (truth, decided), 1)
    cell = max(14, min(34, 520 // count))
    left = top = 92
    size = left + cell * count + 8
    parts = []
    for i, name in enumerate(classes):
        at = left + cell * (i + 0.5)
        label = escape(name if len(name) <= 13 else name[:12] + "…")
        parts += [
            f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{label}</text>',
            f'<text transform="translate({at + 4:.1f} {top - 6}) rotate(-60)">{label}</text>',
        ]
        whole = max(1, int(table[i].sum()))
        for j in range(count):
            value = int(table[i, j])
            share = value / whole
            colour = "var(--good)" if i == j else "var(--bad)"
            x, y = left + cell * j, top + cell * i
            parts.append(
                f'<rect x="{x}" y="{y}" width="{cell - 1}" height="{cell - 1}" fill="{colour}" '
                f'fill-opacity="{share if value else 0.03:.3f}"><title>{escape(name)} taken for '
                f"{escape(classes[j])}: {value} of {whole}</title></rect>"
            )
            if value and cell >= 20:
                parts.append(
                    f'<text x="{x + cell / 2 - 0.5}" y="{y + cell / 2 + 4}" '
                    f'text-anchor="middle">{value}</text>'
                )
    return _svg(parts, "confusion matrix", size, size)
