"""A benchmark as one HTML page that needs no network."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.measurement import Layer, Measurement
from edge_kit.bench.measure.score import Score
from edge_kit.bench.report.card import HEAD, background, facts, notes, row
from edge_kit.bench.report.report import BenchReport
from edge_kit.pages.charts import WIDE, Axis, Drawing, Line, Row, Span, plot, row_chart, stack
from edge_kit.pages.page import Cell, Notes, Page, Section, Table, render

__all__ = ["page"]

_MOST_LAYERS = 25


def page(report: BenchReport) -> str:
    """Return the page of one board's figures.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    all_of_them = report.measurements
    good = [m for m in all_of_them if m.inference is not None]
    warning = [f"{_name(m)}: {text}" for m in all_of_them for text in _problems(m)]
    sections = [
        Section("", "", [
            Table((), facts(report)),
            *([Notes(warning, "Not to be trusted:")] if warning else []),
        ]),
        Section("Figures", "", [
            Table(HEAD, [_figures(m) for m in all_of_them], range(1, len(HEAD) - 1)),
        ]),
        *_charts(good),
        _background(all_of_them),
        *_heat(all_of_them),
        Section("Notes", "", [Notes(notes(report))]),
        *(_layers(m, m.layers) for m in good if m.layers),
    ]  # fmt: skip
    return render(Page(f"edge-kit bench: {report.board_name}", "", sections))


def _name(m: Measurement) -> str:
    return m.configuration.full_title


def _problems(m: Measurement) -> Sequence[str]:
    return [*([f"failed: {m.error}"] if m.error else []), *m.conditions.marks]


def _figures(m: Measurement) -> Sequence[str | Cell]:
    *cells, mark = row(m)
    # The whole sentences are above the table; in it they would be too wide.
    short = ", ".join(sentence.partition(":")[0] for sentence in mark.split("; ")[:2])
    return [*cells, Cell(short, "bad")]


def _charts(good: Sequence[Measurement]) -> list[Section]:
    times = [(_name(m), m.inference) for m in good if m.inference is not None]
    if not times:
        return []
    calls = [(_name(m), m.calls_ms) for m in good if m.calls_ms]
    found = [
        Section(
            "Time of a call",
            "Bar and number: median, milliseconds. Thick line: to the 90th percentile; thin line: "
            "to the 99th.",
            [_latency(times)],
        ),
        Section(
            "Every call, in order",
            "A board that throttles climbs; one that other programs disturb is jagged.",
            [_series(calls, "call", "milliseconds")] if calls else [],
        ),
    ]
    stages = [(_name(m), m.pipeline.stages_ms) for m in good if m.pipeline is not None]
    if stages:
        names = list(dict.fromkeys(name for _, parts in stages for name in parts))
        rows = [
            Row(name, stack(parts, names, ".3f"), f"{sum(parts.values()):.2f}")
            for name, parts in stages
        ]
        axis = Axis("milliseconds", 0.0, max(sum(parts.values()) for _, parts in stages) or 1.0)
        drawing = row_chart(rows, axis, names)
        lead = "Median of each stage, milliseconds."
        found.append(Section("A frame through the whole pipeline", lead, [drawing]))
    scores = [(_name(m), m.top1) for m in good if m.top1 is not None]
    if scores:
        sets = ", ".join(dict.fromkeys(m.top1_set.title for m in good if m.top1_set is not None))
        lead = "Share of right answers with its 95 % interval (Wilson)."
        found.append(Section(f"Top-1 on {sets}" if sets else "Top-1", lead, [_top1(scores)]))
    return found


def _latency(rows: Sequence[tuple[str, Latency]]) -> Drawing:
    drawn = []
    for name, t in rows:
        title = f"p50 {t.p50:.3f}, p90 {t.p90:.3f}, p99 {t.p99:.3f}, min {t.minimum:.3f} ms"
        spans = [
            Span(0, t.p50, title=title), Span(t.p50, t.p90, "thick", 1),
            Span(t.p90, t.p99, "thin", 1),
        ]  # fmt: skip
        drawn.append(Row(name, spans, f"{t.p50:.2f}"))
    return row_chart(drawn, Axis("milliseconds", 0.0, max(t.p99 for _, t in rows) or 1.0))


def _top1(rows: Sequence[tuple[str, Score]]) -> Drawing:
    # Never from 0, where an interval would be too short to read.
    low = min(0.9, math.floor(min(s.low for _, s in rows) * 10) / 10)
    drawn = [
        Row(name, [Span(s.low, s.high, "thick", title=f"{s.right} of {s.total}")],
            f"{s.share:.3f}", s.share)
        for name, s in rows
    ]  # fmt: skip
    return row_chart(drawn, Axis("top-1", low))


def _series(
    series: Sequence[tuple[str, Sequence[float]]], x: str, y: str, *, from_zero: bool = True
) -> Drawing:
    """Draw values in order; the slowest hundredth is cut off, which would flatten the rest."""
    values = sorted(v for _, found in series for v in found)
    scale = Axis.over(y, values[: 1 + int(0.99 * (len(values) - 1))], from_zero=from_zero)
    longest = max(2, *(len(found) for _, found in series))
    lines = [Line(name, list(enumerate(found, 1))) for name, found in series]
    return plot(Axis(x, 1, longest), scale, lines=lines, width=WIDE)


def _background(measurements: Sequence[Measurement]) -> Section:
    rows = background(measurements)
    title = "The board during the runs"
    if not rows:
        return Section(title, "This board tells nothing.", ())
    head, *body = rows
    # The last column is in words where the board tells of throttling.
    words = head[-1] == "throttling"
    return Section(title, "", [Table(head, body, range(1, len(head) - words))])


def _heat(measurements: Sequence[Measurement]) -> list[Section]:
    """Draw temperature and clock over the whole run, where the board tells them."""
    found = []
    for key, title, unit in (
        ("temperatures_c", "Temperature", "°C"), ("clocks_mhz", "Clock", "MHz"),
    ):  # fmt: skip
        looks = [(_name(m), getattr(m.conditions.during, key)) for m in measurements]
        known = [(name, seen) for name, values in looks if (seen := [v for v in values if v])]
        if known:
            drawing = _series(known, "second", unit, from_zero=False)
            found.append(Section(f"{title}, {unit}", "Read once a second.", [drawing]))
    return found


def _layers(m: Measurement, layers: Sequence[Layer]) -> Section:
    shown = layers[:_MOST_LAYERS]
    rows = [
        (x.operator, x.name, x.output, f"{x.mean_ms:.3f}", f"{x.share:.1%}") for x in shown
    ]  # fmt: skip
    return Section(
        f"Operators of {_name(m)}",
        f"The slowest {len(shown)} of {len(layers)}, under the profiler, which slows the model "
        "down.",
        [Table(("operator", "node", "output", "ms", "share"), rows, (3, 4))],
    )
