"""A benchmark as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from edge_kit.bench.measure.measurement import Layer, Measurement
from edge_kit.bench.report.background import meanwhile
from edge_kit.bench.report.card import HEAD, facts, notes, row
from edge_kit.bench.report.plots import Series, latency_bars, lines, score_bars, stage_bars
from edge_kit.bench.report.report import Report

__all__ = ["page"]

_MOST_LAYERS = 25
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:80rem;padding:0 1rem;
  color:#1c2733}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem}
td,th{padding:.3rem .5rem;text-align:right;border-bottom:1px solid #d5e0e8;
  font-variant-numeric:tabular-nums}
td:first-child,th:first-child,th:last-child,td.mark{text-align:left}
td,th{white-space:nowrap}
td.mark{color:#a32020}
td.text{text-align:left;white-space:normal;max-width:26rem}
.facts td{text-align:left}
svg{width:100%;max-width:860px;height:auto;display:block}
svg text{font:12px system-ui,sans-serif;fill:#1c2733}
.marked{background:#fbeceb;border-left:4px solid #a32020;padding:.5rem 1rem;margin-top:1rem}
"""


def page(report: Report) -> str:
    """Return the page of one board's figures."""
    good = [m for m in report.measurements if m.inference is not None]
    title = f"edge-kit bench: {escape(report.board_name)}"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>
<body><h1>{title}</h1>
{_facts(report)}
{_marks(report.measurements)}
<h2>Figures</h2><div class="wide">{_figures(report.measurements)}</div>
<h2>Time of a call</h2><p>Bar and number: median, milliseconds. Thick line: to the 90th percentile;
thin line: to the 99th.</p>
{latency_bars([(_name(m), m.inference) for m in good if m.inference is not None])}
<h2>Every call, in order</h2><p>Milliseconds. A board that throttles climbs; one that other programs
disturb is jagged.</p>
{lines([Series(_name(m), m.calls_ms) for m in good], "milliseconds of each call, in order")}
<h2>A frame through the whole pipeline</h2><p>Median of each stage, milliseconds.</p>
{stage_bars([(_name(m), m.pipeline.stages_ms) for m in good if m.pipeline is not None])}
{_accuracy(good)}
<h2>The board meanwhile</h2><div class="wide">{_conditions(report.measurements)}</div>
{_heat(report.measurements)}
<h2>Notes</h2><ul>{"".join(f"<li>{escape(n)}</li>" for n in notes(report))}</ul>
{"".join(_layers(m, m.layers) for m in good if m.layers)}
</body></html>
"""


def _name(m: Measurement) -> str:
    return m.configuration.full_title


def _facts(report: Report) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in facts(report)
    )
    return f'<table class="facts">{rows}</table>'


def _marks(measurements: Sequence[Measurement]) -> str:
    said = [
        f"{_name(m)}: {mark}"
        for m in measurements
        for mark in (*([f"failed: {m.error}"] if m.error else []), *m.marks)
    ]
    if not said:
        return ""
    items = "".join(f"<li>{escape(s)}</li>" for s in said)
    return f'<div class="marked">Not to be trusted:<ul>{items}</ul></div>'


def _figures(measurements: Sequence[Measurement]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in HEAD)
    body = ""
    for m in measurements:
        *cells, mark = row(m)
        tds = "".join(f"<td>{escape(c)}</td>" for c in cells)
        # The sentences stand above the table, which they would make too wide.
        short = ", ".join(sentence.partition(":")[0] for sentence in mark.split("; ")[:2])
        body += f'<tr>{tds}<td class="mark">{escape(short)}</td></tr>'
    return f"<table><tr>{head}</tr>{body}</table>"


def _accuracy(measurements: Sequence[Measurement]) -> str:
    rows = [(_name(m), m.top1) for m in measurements if m.top1 is not None]
    if not rows:
        return ""
    sets = dict.fromkeys(m.top1_set.title for m in measurements if m.top1_set is not None)
    on = f" on {escape(', '.join(sets))}" if sets else ""
    return (
        f"<h2>Top-1{on}</h2><p>Share of right answers with its 95 % interval (Wilson).</p>"
        f"{score_bars(rows)}"
    )


def _conditions(measurements: Sequence[Measurement]) -> str:
    rows = meanwhile(measurements)
    if not rows:
        return "<p>This board tells nothing.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = ""
    for *cells, text in rows[1:]:
        tds = "".join(f"<td>{escape(c)}</td>" for c in cells)
        body += f'<tr>{tds}<td class="text">{escape(text)}</td></tr>'
    return f"<table><tr>{head}</tr>{body}</table>"


def _heat(measurements: Sequence[Measurement]) -> str:
    """Draw temperature and clock over the whole run, where the board tells them."""
    drawn = ""
    for key, title, unit in (
        ("temperatures_c", "Temperature", "°C"), ("clocks_mhz", "Clock", "MHz"),
    ):  # fmt: skip
        looks = [Series(_name(m), _during(m, key)) for m in measurements]
        known = [s for s in looks if any(v is not None for v in s.values)]
        if known:
            drawn += f"<h2>{title}, {unit}</h2><p>At each look, once a second.</p>"
            drawn += lines(known, f"{title}, {unit}", from_zero=False)
    return drawn


def _during(m: Measurement, key: str) -> Sequence[float | None]:
    return list((m.conditions.get("during") or {}).get(key) or ())


def _layers(m: Measurement, layers: Sequence[Layer]) -> str:
    rows = "".join(
        f"<tr><td>{escape(x.operator)}</td><td>{escape(x.name)}</td><td>{escape(x.output)}</td>"
        f"<td>{x.mean_ms:.3f}</td><td>{x.share:.1%}</td></tr>"
        for x in layers[:_MOST_LAYERS]
    )
    return (
        f"<h2>Operators of {escape(_name(m))}</h2><p>The slowest {len(layers[:_MOST_LAYERS])} of "
        f"{len(layers)}, under the profiler, which slows the model down.</p>"
        "<div class='wide'><table><tr><th>operator</th><th>node</th><th>output</th><th>ms</th>"
        f"<th>share</th></tr>{rows}</table></div>"
    )
