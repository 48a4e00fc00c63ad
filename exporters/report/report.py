"""The calibration report: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.exits import CurvePoint, ExitRule, softmax
from edge_kit.pages.charts import Axis, Bar, Drawing, Line, matrix, plot
from edge_kit.pages.page import Cell, Gallery, Grid, Page, Photo, Section, Table
from edge_kit.pages.page import render as render_page
from edge_kit.pixels.jpeg import thumbnail
from exporters.engines.exported import Exported
from exporters.judge.gates import Gate
from exporters.judge.outcome import Outcome, Share

__all__ = ["ExportReport", "reliability", "render"]

DOUBTFUL = 24
THUMBNAIL = 112


@dataclass(frozen=True)
class ExportReport:
    """What a report tells.

    Attributes:
        rule: The fitted exit rule.
        curve: The sweep on the calibration split, T ascending.
        calibration_photos: How many photos that split has.
        test: Answers on the test split.
        pixels: The test photos as the model sees them, uint8 (N, h, w, 3).
        engine: Which engine file gave the device's answers.
        files: Everything in the bundle.
        gates: All of them, passed.
        made: How the export was made, by name.
    """

    title: str
    classes: tuple[str, ...]
    rule: ExitRule
    curve: tuple[CurvePoint, ...]
    calibration_photos: int
    test: Outcome
    pixels: NDArray[np.uint8]
    engine: str
    files: Sequence[Exported]
    gates: Sequence[Gate]
    made: Mapping[str, Any] = field(default_factory=dict)


def render(report: ExportReport) -> str:
    """Return the report as one self-contained HTML document."""
    sections = [
        _figures(report),
        *_sweep(report),
        _reliability(report),
        _confusion(report),
        _gates(report.gates),
        _sizes(report.files),
        _least_confident(report),
    ]
    if report.made:
        rows = [(k, str(v)) for k, v in report.made.items()]
        sections.append(Section("How it was made", "", [Table((), rows)]))
    return render_page(Page(f"{report.title}: export report", "", sections))


def _figures(report: ExportReport) -> Section:
    test, rule = report.test, report.rule
    exits = test.exits(rule)
    sent = test.message_bytes[~exits]
    jpeg = test.jpeg_bytes.mean()
    rows: list[tuple[str | Cell, Cell]] = [
        ("Whole float model, unsplit", _percent(test.share(test.full.argmax(1)))),
        ("Device alone (int8 end model)", _percent(test.share(test.device.argmax(1)))),
        ("Cloud alone (every photo sent)", _percent(test.share(test.cloud.argmax(1)))),
        (Cell("Hybrid", "strong"), _percent(test.share(test.decisions(rule)), "strong")),
        ("Answered on the device", _percent(Share(int(exits.sum()), len(exits)))),
    ]
    if len(sent):
        ratio = f"{jpeg / sent.mean():.1f} times smaller than the JPEG"
        rows.append(("Mean message, header included", Cell(f"{sent.mean():,.0f} bytes", "", ratio)))
    rows.append(("The same photos as JPEG quality 75", Cell(f"{jpeg:,.0f} bytes")))
    return Section(
        "Figures",
        f"Measured on the {len(exits)} photos of the test split, which neither training nor "
        f"calibration saw, with the files of this bundle ({report.engine}). Brackets hold 95 % "
        f"Wilson intervals. Exit rule: normalized entropy at most T = {rule.threshold:.4f}, "
        f"temperature {rule.temperature:.3f}.",
        [Table(("", "top-1 or share"), rows)],
    )


def _percent(share: Share, look: str = "") -> Cell:
    low, high = share.interval
    return Cell(f"{share.value:.1%}", look, f"({low:.1%} to {high:.1%})")


def _sweep(report: ExportReport) -> Sequence[Section]:
    curve = [p for p in report.curve if 0 <= p.threshold <= 1]
    if not curve:
        return ()
    accuracy = [p.accuracy for p in curve]
    top1 = Axis("accuracy", max(0.0, min(accuracy) - 0.05), min(1.0, max(accuracy) + 0.02), ".0%")
    share = Axis("share answered on the device", form=".0%")
    sent = Axis.over("mean bytes sent a photo", [p.mean_bytes for p in report.curve])

    def against_threshold(y: Axis, values: Sequence[float]) -> Drawing:
        points = [(p.threshold, value) for p, value in zip(curve, values, strict=True)]
        line = Line(y.label, points, steps=True)
        return plot(Axis("threshold T"), y, lines=[line], marker=report.rule.threshold)

    shares = [p.device_share for p in curve]
    traded = Line("hybrid top-1", list(zip(shares, accuracy, strict=True)))
    drawings = [
        against_threshold(share, shares),
        against_threshold(top1, accuracy),
        against_threshold(sent, [p.mean_bytes for p in curve]),
        plot(share, top1, lines=[traded]),
    ]
    lead = (
        f"Measured on the {report.calibration_photos} photos of the calibration split. The dashed "
        "line is the T of this bundle; --threshold and --target-offload choose another."
    )
    return [Section("Threshold sweep", lead, [Grid(drawings)])]


def _reliability(report: ExportReport) -> Section:
    p = softmax(report.test.device, report.rule.temperature)
    bars, error = reliability(p.max(1), p.argmax(1) == report.test.labels)
    scales = Axis("confidence", form=".0%"), Axis("accuracy", form=".0%")
    return Section(
        "Reliability of the exit",
        "How often the device is right when it is so sure, on the test split. On the dashed line "
        f"confidence equals accuracy. Expected calibration error {error:.3f}; numbers on the bars "
        "count photos.",
        [plot(*scales, bars=bars, diagonal=True)],
    )


def reliability(
    confidence: NDArray[np.float64], correct: NDArray[np.bool_], bins: int = 10
) -> tuple[list[Bar], float]:
    """Compare accuracy with confidence in equal bins.

    Args:
        confidence: Probability of the chosen class, (N,).
        correct: Whether it was right, (N,).
        bins: Number of bins over 0 to 1.

    Returns:
        A bar for each bin that has photos, and the expected calibration error (Guo et al., 2017).
    """
    which = np.minimum((confidence * bins).astype(int), bins - 1)
    bars, error = [], 0.0
    for b in range(bins):
        inside = which == b
        count = int(inside.sum())
        if not count:
            continue
        accuracy, sure = float(correct[inside].mean()), float(confidence[inside].mean())
        error += abs(accuracy - sure) * count / len(confidence)
        title = f"{count} photos: confidence {sure:.2f}, accuracy {accuracy:.2f}"
        bars.append(Bar(b / bins, (b + 1) / bins, accuracy, title, str(count)))
    return bars, error


def _confusion(report: ExportReport) -> Section:
    size = len(report.classes)
    counts = np.zeros((size, size), np.int64)
    np.add.at(counts, (report.test.labels, report.test.decisions(report.rule)), 1)
    return Section(
        "Confusion matrix",
        "Final answers of the hybrid on the test split: rows are true classes, columns answers.",
        [matrix(counts.tolist(), report.classes)],
    )


def _gates(gates: Sequence[Gate]) -> Section:
    words = {
        True: Cell("passed", "good"), False: Cell("failed", "bad"),
        None: Cell("not checked", "soft"),
    }  # fmt: skip
    rows = [(words[g.ok], g.name, g.sentence) for g in gates]
    lead = "An export fails when one of these does."
    return Section("Gates", lead, [Table(("", "gate", "measured"), rows)])


def _sizes(files: Sequence[Exported]) -> Section:
    entries = [f.entry for f in files]
    rows = [
        (Cell(e.path, "code"), e.role, f"{e.engine}, {e.arch}", f"{e.size:,}") for e in entries
    ]  # fmt: skip
    return Section("Sizes", "", [Table(("file", "role", "engine", "bytes"), rows, (3,))])


def _least_confident(report: ExportReport) -> Section:
    """Show the test photos with the highest entropies, least confident first."""
    test, classes = report.test, report.classes
    entropy, exits = test.entropy(report.rule), test.exits(report.rule)
    photos = []
    for i in np.argsort(-entropy, kind="stable")[:DOUBTFUL]:
        truth = int(test.labels[i])
        answers = [
            (who, Cell(classes[label], "good" if label == truth else "bad"))
            for who, logits in (("device", test.device), ("cloud", test.cloud))
            for label in [int(logits[i].argmax())]
        ]
        note = f"entropy {entropy[i]:.2f}, {'device answers' if exits[i] else 'sent'}"
        photos.append(Photo(thumbnail(report.pixels[i], THUMBNAIL), classes[truth], answers, note))
    lead = "The test photos of which the device is least sure, with their true class."
    return Section("Least confident photos", lead, [Gallery(photos)])
