"""The demo's report: one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edge_kit.demo.figures import Answer, Figures
from edge_kit.pages.charts import WIDE, Axis, Bar, Drawing, Row, Span, plot, row_chart
from edge_kit.pages.page import Cell, Gallery, Page, Photo, Section, Table, Tiles, render

__all__ = ["page"]

_BINS = 20


def page(figures: Figures, thumbnails: Mapping[str, bytes]) -> str:
    """Return the page.

    Args:
        figures: What was measured.
        thumbnails: JPEG files of the photos to show, by `Answer.name`, in this order.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    f = figures.to_json()
    by_name = {a.name: a for a in figures.answers}
    shown = [_photo(by_name[n], data, figures) for n, data in thumbnails.items() if n in by_name]
    lead = (
        f"A device classified each photo with an int8 {figures.engine} model and answered what it "
        f"was sure of. Of the rest it sent features over MQTT ({figures.broker}); a worker "
        "answered those."
    )
    sections = [
        Section("", "", [Tiles([
            (f"{f['device_share']:.0%}", "answered on the device"),
            (f"{f['accuracy']['hybrid']:.1%}", "of all answers right"),
            (_number(f["bytes_per_offloaded"], "bytes"), "a message, header included"),
            (_number(f["latency_ms"]["roundtrip_p50"], "ms"), "to the cloud and back, median"),
            (str(f["lost"]), "samples lost"),
        ])]),
        Section(
            "How often each is right",
            f"Of {f['photos']} photos: few, so differences of a point or two mean little.",
            [Table(("", "top-1"), [
                ("the device alone, every photo", f"{f['accuracy']['device']:.1%}"),
                ("the cloud half alone, every photo", f"{f['accuracy']['cloud']:.1%}"),
                ("both, as they ran", f"{f['accuracy']['hybrid']:.1%}"),
            ], (1,))],
        ),
        Section(
            "How sure the device was",
            "Photos by normalized entropy, 0 (sure) to 1 (unsure).",
            [_entropies(figures)],
        ),
        _bytes(f["bytes_per_offloaded"], f["jpeg_bytes"]),
        Section("Time", "", [Table(("", "median", "95 %"), [
            _times("frame to the device's answer", f["latency_ms"], "device"),
            _times("sent to the cloud's answer", f["latency_ms"], "roundtrip"),
        ], (1, 2))]),
        Section("The least confident photos", "", [Gallery(shown)]),
    ]  # fmt: skip
    return render(Page(f"edge-kit demo: {f['photos']} photos", lead, sections))


def _entropies(figures: Figures) -> Drawing:
    """Draw the histogram of entropies with T."""
    counts, edges = np.histogram([a.entropy for a in figures.answers], bins=_BINS, range=(0, 1))
    bars = [
        Bar(start, end, float(n), f"{n} photos", str(n) if n else "")
        for n, start, end in zip(counts, edges[:-1], edges[1:], strict=True)
    ]
    threshold = min(1.0, max(0.0, figures.threshold))
    text = f"T = {figures.threshold:.3g}: what lies right of it was sent"
    scale = Axis.over("photos", map(float, counts))
    return plot(Axis("entropy"), scale, bars=bars, marker=threshold, marker_text=text, width=WIDE)


def _bytes(ours: float | None, theirs: float | None) -> Section:
    title = "Bytes for an offloaded photo"
    if not ours or not theirs:
        return Section(title, "Nothing was sent.", ())
    ratio = f"{theirs / ours:.1f} times smaller." if ours < theirs else "No smaller than a JPEG."
    rows = [
        Row("features, header included", [Span(0, ours)], f"{ours:,.0f}"),
        Row("JPEG of quality 75, same size", [Span(0, theirs, colour=1)], f"{theirs:,.0f}"),
    ]
    return Section(title, ratio, [row_chart(rows, Axis("bytes", 0.0, max(ours, theirs)))])


def _times(what: str, latency: Mapping[str, Any], key: str) -> tuple[str, str, str]:
    p50, p95 = (_number(latency[f"{key}_{q}"], "ms") for q in ("p50", "p95"))
    return what, p50, p95


def _photo(answer: Answer, data: bytes, figures: Figures) -> Photo:
    device = answer.halves.device_label
    final = device if answer.final_label is None else answer.final_label
    said = [("device", device), *([("cloud", final)] if answer.offloaded else [])]
    answers = [
        (who, Cell(figures.classes[label], "good" if label == answer.truth else "bad"))
        for who, label in said
    ]
    title, note = figures.classes[answer.truth], f"entropy {answer.entropy:.2f}"
    return Photo(data, title, answers, note)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "none"
    return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"
