"""The calibration report: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.exits import CurvePoint, ExitRule, softmax
from exporters.engines.exported import Exported
from exporters.judge.gates import Gate
from exporters.judge.outcome import Outcome, Share
from exporters.report.charts import Line, confusion_matrix, line_chart, reliability_diagram
from exporters.report.report_page import page, section, table

__all__ = ["ExportReport", "render"]

DOUBTFUL = 24
THUMBNAIL = 112


@dataclass(frozen=True)
class ExportReport:
    """What a report tells.

    Attributes:
        title: Model name.
        classes: Class names.
        rule: The fitted exit rule.
        curve: The sweep on the calibration split, T ascending.
        calibration_photos: How many photos that split has.
        test: Answers on the test split.
        pixels: The test photos as the model sees them, uint8 (N, h, w, 3).
        names: Their names.
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
    names: Sequence[str]
    engine: str
    files: Sequence[Exported]
    gates: Sequence[Gate]
    made: Mapping[str, Any] = field(default_factory=dict)


def render(report: ExportReport) -> str:
    """Return the report as one self-contained HTML document."""
    return page(
        f"{report.title}: export report",
        [
            _figures(report),
            _sweep(report),
            _reliability(report),
            _confusion(report),
            _gates(report.gates),
            _sizes(report.files),
            _doubtful(report),
            _made(report.made),
        ],
    )


def _percent(share: Share) -> str:
    low, high = share.interval
    return f"{share.value:.1%} <small>({low:.1%} to {high:.1%})</small>"


def _figures(report: ExportReport) -> str:
    test, rule = report.test, report.rule
    exits = test.exits(rule)
    sent = test.message_bytes[~exits]
    jpeg = test.jpeg_bytes.mean()
    rows = [
        ("Whole float model, unsplit", _percent(test.share(test.full.argmax(1)))),
        ("Device alone (int8 end model)", _percent(test.share(test.device.argmax(1)))),
        ("Cloud alone (every photo sent)", _percent(test.share(test.cloud.argmax(1)))),
        ("<b>Hybrid</b>", f"<b>{_percent(test.share(test.decisions(rule)))}</b>"),
        ("Answered on the device", _percent(Share(int(exits.sum()), len(exits)))),
    ]
    if len(sent):
        ratio = f", {jpeg / sent.mean():.1f} times smaller than the JPEG"
        rows.append(("Mean message, header included", f"{sent.mean():,.0f} bytes{ratio}"))
    rows.append(("The same photos as JPEG quality 75", f"{jpeg:,.0f} bytes"))
    return section(
        "Figures",
        f"Measured on the {len(exits)} photos of the test split, which neither training nor "
        f"calibration saw, with the files of this bundle ({escape(report.engine)}). Brackets hold "
        "95 % Wilson intervals.",
        table(("", "top-1 or share"), rows)
        + f"<p>Exit rule: normalized entropy at most T = {rule.threshold:.4f}, "
        f"temperature {rule.temperature:.3f}.</p>",
    )


def _sweep(report: ExportReport) -> str:
    curve = [p for p in report.curve if 0 <= p.threshold <= 1]
    if not curve:
        return ""
    t = [p.threshold for p in curve]
    accuracy = [p.accuracy for p in curve]
    most = _round_up(max(p.mean_bytes for p in report.curve))
    marker = report.rule.threshold
    shares = line_chart(
        [Line("answered on device", t, [p.device_share for p in curve], "var(--b)", steps=True)],
        "threshold T",
        "share of photos",
        marker=marker,
    )
    floor = max(0.0, min(accuracy) - 0.05)
    hybrid = line_chart(
        [Line("hybrid top-1", t, accuracy, "var(--a)", steps=True)],
        "threshold T",
        "accuracy",
        y=(floor, min(1.0, max(accuracy) + 0.02)),
        marker=marker,
    )
    traded = line_chart(
        [Line("hybrid top-1", [p.device_share for p in curve], accuracy, "var(--a)")],
        "share answered on the device",
        "accuracy",
        y=(floor, min(1.0, max(accuracy) + 0.02)),
    )
    sent = line_chart(
        [Line("bytes a photo", t, [p.mean_bytes for p in curve], "var(--c)", steps=True)],
        "threshold T",
        "mean bytes sent a photo",
        y=(0.0, most),
        percent=False,
        marker=marker,
    )
    return section(
        "Threshold sweep",
        f"Measured on the {report.calibration_photos} photos of the calibration split. The dashed "
        "line is the T of this bundle; <code>--threshold</code> and <code>--target-offload</code> "
        "choose another.",
        f'<div class="charts">{shares}{hybrid}{sent}{traded}</div>',
    )


def _round_up(value: float) -> float:
    """Return a round number at or above `value`, for the top of an axis."""
    step = 10.0 ** max(0, len(str(int(value))) - 1) / 2
    return max(step, math.ceil(value / step) * step)


def _reliability(report: ExportReport) -> str:
    p = softmax(report.test.device, report.rule.temperature)
    correct = p.argmax(1) == report.test.labels
    drawing, error = reliability_diagram(p.max(1), correct)
    return section(
        "Reliability of the exit",
        "How often the device is right when it is so sure, on the test split. On the dashed line "
        f"confidence equals accuracy. Expected calibration error {error:.3f}; numbers on the bars "
        "count photos.",
        drawing,
    )


def _confusion(report: ExportReport) -> str:
    decided = report.test.decisions(report.rule)
    return section(
        "Confusion matrix",
        "Final answers of the hybrid on the test split: rows are true classes, columns answers.",
        confusion_matrix(report.test.labels, decided, report.classes),
    )


def _gates(gates: Sequence[Gate]) -> str:
    words = {True: "passed", False: "failed", None: "not checked"}
    rows = [
        (
            f'<span class="{words[g.ok].replace(" ", "-")}">{words[g.ok]}</span>',
            escape(g.name),
            escape(g.sentence),
        )
        for g in gates
    ]
    return section(
        "Gates", "An export fails when one of these does.", table(("", "gate", "measured"), rows)
    )


def _sizes(files: Sequence[Exported]) -> str:
    rows = [
        (
            f"<code>{escape(f.entry.path)}</code>",
            escape(f.entry.role),
            escape(f"{f.entry.engine}, {f.entry.arch}"),
            f"{f.entry.size:,}",
        )
        for f in files
    ]
    return section("Sizes", "", table(("file", "role", "engine", "bytes"), rows))


def _doubtful(report: ExportReport) -> str:
    """Show the test photos with the highest entropies, most doubtful first."""
    entropy = report.test.entropy(report.rule)
    exits = report.test.exits(report.rule)
    cards = []
    for i in np.argsort(-entropy, kind="stable")[:DOUBTFUL]:
        truth = report.classes[int(report.test.labels[i])]
        device = report.classes[int(report.test.device[i].argmax())]
        cloud = report.classes[int(report.test.cloud[i].argmax())]
        asked = "device answers" if exits[i] else "sent"
        cards.append(
            f'<figure><img alt="{escape(report.names[i])}" src="{_thumbnail(report.pixels[i])}">'
            f"<figcaption><b>{escape(truth)}</b><br>device: {_word(device, truth)}<br>"
            f"cloud: {_word(cloud, truth)}<br><small>entropy {entropy[i]:.2f}, {asked}</small>"
            "</figcaption></figure>"
        )
    return section(
        "Most doubtful photos",
        "The test photos of which the device is least sure, with their true class.",
        f'<div class="photos">{"".join(cards)}</div>',
    )


def _word(answer: str, truth: str) -> str:
    kind = "passed" if answer == truth else "failed"
    return f'<span class="{kind}">{escape(answer)}</span>'


def _thumbnail(pixels: NDArray[np.uint8]) -> str:
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


def _made(made: Mapping[str, Any]) -> str:
    rows = [(escape(str(k)), escape(str(v))) for k, v in made.items()]
    return section("How it was made", "", table(("", ""), rows)) if rows else ""
