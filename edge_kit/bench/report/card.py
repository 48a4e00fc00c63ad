"""A benchmark as text: a table for a terminal, and a Markdown card for an issue."""

from __future__ import annotations

import time
from collections.abc import Sequence

from edge_kit.bench.conditions.state import Throttling
from edge_kit.bench.measure.measurement import Measurement
from edge_kit.bench.measure.score import Score
from edge_kit.bench.report.report import BenchReport

__all__ = ["HEAD", "background", "card", "facts", "notes", "row", "table"]

HEAD = ("model", "threads", "p50 ms", "p90 ms", "p99 ms", "min ms", "mean ms", "load ms",
        "first ms", "peak MB", "file kB", "top-1", "frames/s", "marks")  # fmt: skip
_BACKGROUND = ("model", "°C before", "°C most", "°C after", "MHz before", "MHz least", "MHz most",
               "MHz after", "other load, cores", "throttling")  # fmt: skip
_MOST_LAYERS = 10


def row(measurement: Measurement) -> tuple[str, ...]:
    """Return the cells under `HEAD`; an error takes the place of the marks."""
    m, c, times = measurement, measurement.configuration, measurement.inference
    if times is None:
        return (c.title, str(c.threads), *[""] * (len(HEAD) - 3), f"failed: {m.error}")
    return (
        c.title,
        str(c.threads),
        *(f"{v:.2f}" for v in (times.p50, times.p90, times.p99, times.minimum, times.mean)),
        f"{m.init_ms:.0f}",
        f"{m.first_inference_ms:.1f}",
        f"{m.memory.peak / 1e6:.1f}" if m.memory else "",
        f"{c.size_bytes / 1e3:.0f}",
        _share(m.top1),
        f"{m.pipeline.fps:.1f}" if m.pipeline else "",
        "; ".join(m.conditions.marks),
    )


def table(report: BenchReport) -> str:
    """Return the figures for a terminal."""
    lines = _aligned(HEAD, list(map(row, report.measurements)))
    if board := background(report.measurements):
        lines += ["", *_aligned(board[0], board[1:])]
    return "\n".join([*lines, "", *notes(report)]).rstrip()


def _aligned(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of columns; those without any content are left out."""
    rows = [head, *body]
    kept = [i for i in range(len(head)) if any(r[i] for r in body)]
    widths = {i: max(len(r[i]) for r in rows) for i in kept}
    left = (0, len(head) - 1)
    return [
        "  ".join(
            cells[i].ljust(widths[i]) if i in left else cells[i].rjust(widths[i]) for i in kept
        ).rstrip()
        for cells in rows
    ]


def card(report: BenchReport) -> str:
    """Return a Markdown page of one board's figures."""
    lines = [f"## edge-kit bench: {report.board_name}", ""]
    lines += [*_markdown(("", ""), facts(report)), ""]
    lines += [*_markdown(HEAD, [row(m) for m in report.measurements]), ""]
    if board := background(report.measurements):
        lines += [*_markdown(board[0], board[1:]), ""]
    lines += [f"- {note}" for note in notes(report)]
    profiled = [m for m in report.measurements if m.layers]
    shown = report.fastest if report.fastest in profiled else next(iter(profiled), None)
    if shown is not None and shown.layers:
        of = f"{len(shown.layers)} operators, {shown.configuration.full_title}"
        lines += ["", f"Slowest of {of}, under the profiler:", ""]
        cells = [
            (layer.operator, layer.output, f"{layer.mean_ms:.3f}", f"{layer.share:.1%}")
            for layer in shown.layers[:_MOST_LAYERS]
        ]
        lines += _markdown(("operator", "output", "ms", "share"), cells)
    return "\n".join(lines) + "\n"


def background(measurements: Sequence[Measurement]) -> list[tuple[str, ...]]:
    """Return the head and a row for each measurement, without what the board does not tell.

    Empty when it tells nothing. The first column names the measurement, the last is text.
    """
    rows = [_background_row(m) for m in measurements if m.conditions.during.looks]
    told = [i for i in range(1, len(_BACKGROUND)) if any(r[i] for r in rows)]
    if not told:
        return []
    return [tuple(r[i] for i in (0, *told)) for r in (_BACKGROUND, *rows)]


def _background_row(m: Measurement) -> tuple[str, ...]:
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


def facts(report: BenchReport) -> list[tuple[str, str]]:
    """Return what was measured, on what and with what."""
    board, effort = report.board, report.effort
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(report.measured_at))
    runtimes = dict.fromkeys(m.runtime for m in report.measurements if m.runtime)
    governors = dict.fromkeys(m.conditions.governor for m in report.measurements)
    cores = f"{board.get('cores')} cores"
    software = [f"edge-kit {report.version}, Python {board.get('python')}", *runtimes]
    return [
        ("board", ", ".join([*dict.fromkeys((report.board_name, str(board.get("arch")))), cores])),
        ("memory", f"{int(board.get('memory') or 0) / 1e9:.1f} GB"),
        ("system", f"{board.get('system')}, kernel {board.get('kernel')}"),
        ("governor", ", ".join(filter(None, governors)) or "unknown"),
        ("software", ", ".join(software)),
        ("model", f"{report.model.name} {report.model.model_hash[:16]}"),
        ("measured", f"{when}, {effort.get('runs')} calls after {effort.get('warmup')} to warm up"),
    ]


def notes(report: BenchReport) -> list[str]:
    """Return what a table cannot show, a sentence each."""
    said = [note for m in report.measurements for note in _notes_on(m)]
    sets = dict.fromkeys(m.top1_set.title for m in report.measurements if m.top1_set)
    said += [f"top-1: {title}, 95 % interval in brackets" for title in sets]
    said += dict.fromkeys(why for m in report.measurements for why in m.skipped)
    said += _overhead(report.measurements)
    conditions = [m.conditions for m in report.measurements]
    warmest = ((c.before.temperature_c, c.during.temperature_max_c) for c in conditions)
    if heat := [t for pair in warmest for t in pair if t is not None]:
        said.append(f"hottest {max(heat):.1f} °C, coolest {min(heat):.1f} °C")
    if before := {words for c in conditions for words in c.after.throttled_since_boot}:
        said.append(f"since the board started: {', '.join(sorted(before))}")
    trip = report.round_trip
    if trip is None:
        return said
    sent = f"{trip.sent} messages of {trip.bytes_mean:,.0f} bytes on average to {trip.broker}"
    if trip.round_trip is None:
        return [*said, f"{sent}: no worker answered"]
    t = trip.round_trip
    times = f"round trip p50 {t.p50:.1f}, p90 {t.p90:.1f}, p99 {t.p99:.1f} ms"
    return [*said, f"{sent}, {trip.answered} answered; {times}"]


def _notes_on(m: Measurement) -> list[str]:
    said, which = [], m.configuration.full_title
    if m.pipeline is not None:
        stages = ", ".join(f"{k} {v:.2f}" for k, v in m.pipeline.stages_ms.items())
        said.append(f"stages of {which}, {m.pipeline.source}, median ms: {stages}")
    if m.self_test is not None and m.self_test.right < m.self_test.total:
        said.append(
            f"{which}: {m.self_test.right} of {m.self_test.total} photos of the self-test are "
            "answered as at the export"
        )
    return said


def _overhead(measurements: Sequence[Measurement]) -> list[str]:
    """Say what measuring costs, as measured in this very run."""
    clocks = [
        (m.clock_us, m.clock_us / 10 / m.inference.p50)
        for m in measurements if m.clock_us is not None and m.inference and m.inference.p50
    ]  # fmt: skip
    looks = [m.conditions.look_ms for m in measurements if m.conditions.look_ms is not None]
    said = []
    if clocks:
        most, share = max(us for us, _ in clocks), max(percent for _, percent in clocks)
        said.append(f"taking the time adds {most:.1f} µs to a call, {share:.3f} % of the median")
    if looks:
        said.append(f"a look at the board, once a second, takes {max(looks):.1f} ms of a core")
    return [f"the benchmark's own cost: {'; '.join(said)}"] if said else []


def _share(score: Score | None) -> str:
    if score is None:
        return ""
    return f"{score.share:.3f} ({score.low:.2f}-{score.high:.2f}) of {score.total}"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    # A bar or a line break in a text, such as a board's name, would end its cell.
    cells = [[c.replace("|", "\\|").replace("\n", " ") for c in r] for r in rows]
    body = [f"| {' | '.join(r)} |" for r in cells]
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *body]
