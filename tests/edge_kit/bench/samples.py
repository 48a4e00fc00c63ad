"""Boards, measurements and reports made up for the tests of the benchmark."""

from __future__ import annotations

from dataclasses import replace

from edge_kit.bench import BenchReport
from edge_kit.bench.conditions.conditions import BoardMonitor, Conditions, During
from edge_kit.bench.conditions.state import BoardState, Throttling
from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.measurement import Configuration, Measurement
from edge_kit.bench.measure.roundtrip import RoundTrip
from edge_kit.bench.measure.score import LabelledSet, Score
from edge_kit.bench.report.report import Model

ONE = Configuration("end/a.onnx", "onnx", "end", "int8", "any", 1000, 1)
LABELS = (0, 1) * 20
TRIP = RoundTrip("mqtt://b", "onnx", 1, 3, 3, 98.0, Latency.of([0.01]))


def quiet() -> BoardMonitor:
    """Return a monitor of a board on which nothing happens."""
    return BoardMonitor(lambda: BoardState(temperature_c=40.0), lambda: 0.0)


def pi_bits(number, cooling=None, throttle_count=None) -> BoardState:
    """Return a look at a Raspberry Pi that tells nothing but its throttling bits."""
    bits = Throttling(number)
    return BoardState(None, None, str(bits), bits.now, bits.since_boot, cooling, throttle_count)


def marked(sentence) -> Conditions:
    """Return conditions that spoil a measurement."""
    return Conditions(during=During(looks=1), marks=(sentence,))


def throttled() -> BoardMonitor:
    """Return a monitor of a hot Raspberry Pi on a weak power supply."""
    state = replace(pi_bits(0x50005, True, 3), temperature_c=61.5, clock_mhz=1400.0)
    return BoardMonitor(lambda: state, lambda: 0.0)


def measured(ms, configuration=ONE, calls=50, **more) -> Measurement:
    """Return a measurement whose calls all took `ms`."""
    latency = Latency.of([ms / 1e3] * calls)
    return Measurement(configuration, inference=latency, runtime="onnxruntime 1", **more)


def answered(wrong, labels=LABELS, name="a" * 64, of=ONE, **more) -> Measurement:
    """Return a measurement that has the first `wrong` photos wrong."""
    got = tuple(1 - v if n < wrong else v for n, v in enumerate(labels))
    score = Score.of(len(labels) - wrong, len(labels))
    labelled = LabelledSet("bundle", "test", name, labels)
    latency = Latency.of([0.01] * 30)
    return Measurement(
        of, inference=latency, top1=score, top1_set=labelled, top1_answers=got, **more
    )


def report_of(*measurements, model="aa" * 32, board="Pi") -> BenchReport:
    """Return a report of some measurements."""
    about = Model("m", model, 0.5)
    return BenchReport("0.1.0", 0.0, {"model": board, "arch": "aarch64"}, about, {}, measurements)
