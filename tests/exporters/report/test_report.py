"""Figures, charts and the report page."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from edge_kit.bundle.split import EngineFile
from edge_kit.exits import CurvePoint, ExitRule
from exporters.engines.exported import Exported
from exporters.judge.gates import Gate
from exporters.judge.outcome import Outcome
from exporters.report.report import DOUBTFUL, ExportReport, reliability, render
from tests.support.html import assert_standalone

pytestmark = pytest.mark.export

RULE = ExitRule(0.5, 1.0)


def outcome(n: int = 40) -> Outcome:
    """Device sure and right on the first half, unsure and wrong on the rest; cloud right."""
    labels = np.arange(n) % 3
    sure = np.eye(3, dtype=np.float32)[labels] * 9
    unsure = np.eye(3, dtype=np.float32)[(labels + 1) % 3] * 0.1
    device = np.where((np.arange(n) < n // 2)[:, None], sure, unsure)
    return Outcome(
        labels=labels,
        device=device,
        cloud=np.eye(3, dtype=np.float32)[labels] * 5,
        full=np.eye(3, dtype=np.float32)[labels] * 5,
        message_bytes=np.full(n, 100),
        jpeg_bytes=np.full(n, 1500),
    )


def test_reliability_calibration_error_of_calibrated_and_overconfident_model():
    correct = np.arange(100) < 75
    (bar,), error = reliability(np.full(100, 0.75), correct)
    assert error == pytest.approx(0.0)
    assert (bar.start, bar.end, bar.height, bar.text) == (0.7, 0.8, 0.75, "100")
    _, error = reliability(np.full(100, 0.95), correct)
    assert error == pytest.approx(0.2)


def report(**changes) -> ExportReport:
    entry = EngineFile("end/x.onnx", "end", "onnx", "any", "0" * 64, 1234, (), ())
    settings = {
        "title": "toy <model>",
        "classes": ("a", "b", "c"),
        "rule": RULE,
        "curve": tuple(CurvePoint(t / 9, t / 9, 0.9, 99.0 - t) for t in range(10)),
        "calibration_photos": 30,
        "test": outcome(),
        "pixels": np.random.default_rng(0).integers(0, 255, (40, 16, 16, 3), np.uint8),
        "engine": "onnx for x86_64",
        "files": [Exported(Path("x.onnx"), entry)],
        "gates": [
            Gate("parity", 0.1, 0.2, True, "parity is fine"),
            Gate("runtime", None, 1.0, None, "not installed & so not checked"),
        ],
        "made": {"seed": 0},
    }
    return ExportReport(**(settings | changes))


def test_page_needs_no_network_and_escapes_names():
    page = render(report())
    assert_standalone(page)
    assert "toy &lt;model&gt;" in page
    assert "not installed &amp; so" in page
    assert "1,234" in page


def test_least_confident_photos_come_first():
    page = render(report())
    entropies = [float(e) for e in re.findall(r"entropy ([\d.]+), (?:sent|device)", page)]
    assert len(entropies) == DOUBTFUL
    assert entropies == sorted(entropies, reverse=True)
    assert page.count("data:image/jpeg;base64,") == DOUBTFUL


def test_report_without_curve_or_messages_renders():
    page = render(report(curve=(), rule=ExitRule(1.0)))
    assert "Threshold sweep" not in page
    assert "Mean message" not in page
