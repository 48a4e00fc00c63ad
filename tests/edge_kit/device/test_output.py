from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from edge_kit.delivery.results import Result
from edge_kit.device.output import JsonLines, LiveLine, PlainLines
from edge_kit.telemetry.stages import Stages

FINAL = Result(None, "a.jpg", 3, 1e9, 1, "Füße", 0.91234567, 0.1, latency_ms=4.0)
ASKING = replace(FINAL, sample="00" * 8, status="provisional", bytes_sent=70)
CLOUD = replace(ASKING, tier="cloud", status="final", round_trip_ms=12.5)


def test_result_survives_its_json_form():
    for result in (FINAL, ASKING, CLOUD):
        again = Result.decode(result.encode())
        assert replace(again, confidence=result.confidence) == result
        assert again.confidence == pytest.approx(result.confidence, abs=1e-4)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sample": null}', "null"])
def test_text_that_is_not_a_result_is_a_value_error(text):
    with pytest.raises(ValueError):
        Result.decode(text)


def test_json_lines_hold_results_and_end_with_the_summary():
    stream = io.StringIO()
    sink = JsonLines(stream)
    sink.result(FINAL)
    sink.summary({"run": {"frames": 1}})
    first, last = stream.getvalue().splitlines()
    assert json.loads(first)["class"] == "Füße" and json.loads(first)["schema"] == 1
    assert json.loads(last) == {"schema": 1, "summary": {"run": {"frames": 1}}}


def test_plain_lines_name_the_tier_and_a_low_confidence():
    stream = io.StringIO()
    sink = PlainLines(stream)
    for result in (FINAL, ASKING, CLOUD, replace(ASKING, status="standing", reason="too old")):
        sink.result(result)
    sink.summary({})
    assert stream.getvalue().splitlines() == [
        "a.jpg: Füße 0.91 [device, 4 ms]",
        "a.jpg: Füße 0.91 [device, 4 ms] (asking the cloud)",
        "a.jpg: Füße 0.91 [cloud, 4 ms]",
        "a.jpg: Füße 0.91 [device, 4 ms] (low confidence; too old)",
    ]


def test_live_line_is_drawn_at_most_ten_times_a_second_and_counts_all():
    stream = io.StringIO()
    now = [0.0]
    sink = LiveLine(stream, clock=lambda: now[0])
    for step in range(100):
        now[0] = step / 100
        sink.result(FINAL if step % 2 else ASKING)
    for _ in range(20):
        sink.result(CLOUD)
    now[0] = 2.0
    sink.result(FINAL)
    sink.summary({})
    text = stream.getvalue()
    assert 9 <= text.count("\r") <= 12 and text.endswith("\n")
    last = text.rsplit("\r", 1)[1]
    assert last.startswith("101 frames, 50.5/s, 50 % answered here, 30 waiting")


@pytest.mark.parametrize("error", [BrokenPipeError(), ValueError("closed")])
def test_reader_that_left_breaks_the_sink_quietly(error):
    class Gone(io.StringIO):
        writes = 0

        def write(self, text):
            self.writes += 1
            raise error

    stream = Gone()
    sink = JsonLines(stream)
    sink.result(FINAL)
    sink.result(FINAL)
    assert sink.broken and stream.writes == 1


def test_stages_give_medians():
    stages = Stages()
    for seconds in (0.001, 0.002, 0.009):
        stages.add("engine", seconds)
    with stages.time("decide"):
        pass
    medians = stages.medians_ms()
    assert medians["engine"] == 2.0 and medians["decide"] >= 0
