from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from edge_kit.delivery.courier import Courier
from edge_kit.delivery.outbox import Outbox
from edge_kit.delivery.results import Result
from edge_kit.delivery.spool import Spool
from edge_kit.delivery.window import Pace
from edge_kit.device.loop import Device
from edge_kit.engines.end import EndOutput
from edge_kit.errors import EngineError, LinkError, SpoolError
from edge_kit.exits import ExitRule
from edge_kit.link import Delivery, Disconnected, MemoryBroker, MemoryLink, Subscription
from edge_kit.sources.source import MemorySource
from edge_kit.telemetry.counters import Backlog, DeviceCounters, to_json
from edge_kit.telemetry.presence import Presence
from edge_kit.tensors import TensorSpec
from edge_kit.wire import FeatureMessage, ResultMessage, Topics

TOPICS = Topics("cam")
CLASSES = ("red", "green", "blue")
MODEL = b"\x01" * 8
WAIT_S = 30.0


class FakeModel:
    """Sure of bright images, not of dark ones; the features hold the brightness."""

    feature_spec = TensorSpec("features", (1, 1, 4), "NCHW", "int8", 1.0, 0)

    def infer(self, pixels):
        level = int(pixels[0, 0, 0])
        logits = np.array([level, 0, 0], np.float32)
        return EndOutput(np.full((1, 1, 4), level, np.int8), logits)


@dataclass
class ListSink:
    broken: bool = False
    results: list[Result] = field(default_factory=list)

    def result(self, result: Result) -> None:
        self.results.append(result)

    def summary(self, summary) -> None: ...


def images(*levels: int) -> MemorySource:
    return MemorySource([np.full((2, 2, 3), level, np.uint8) for level in levels])


def device(source, sink, model=None) -> Device:
    return Device(
        source,
        lambda pixels: pixels,
        model or FakeModel(),
        ExitRule(0.5),
        classes=CLASSES,
        wire_id=MODEL,
        cut=0,
        sink=sink,
    )


class Cloud:
    """A courier to an in-memory broker, and a worker thread behind it."""

    def __init__(self, path: Path, sink: ListSink, *, answers: bool = True) -> None:
        self.reports: list[str] = []
        self.broker = MemoryBroker()
        self.worker = MemoryLink(self.broker, [Subscription(TOPICS.features)])
        self.worker.start()
        presence = Presence(TOPICS, {})
        self.link = MemoryLink(self.broker, [Subscription(TOPICS.results), presence.subscription])
        self.spool = Spool(path)
        box = Outbox(
            self.spool, self.link, TOPICS, classes=CLASSES, model=MODEL, emit=sink.result,
            pace=Pace(window=4),
        )  # fmt: skip
        self.courier = Courier(
            box, self.spool, self.link, presence, state=dict, report=self.reports.append
        )
        self._thread = threading.Thread(target=self._work, daemon=True)
        if answers:
            self._thread.start()

    def _work(self) -> None:
        while True:
            event = self.worker.events.get()
            if isinstance(event, Disconnected):
                return
            if isinstance(event, Delivery):
                header = FeatureMessage.decode(event.payload).header
                answer = ResultMessage(MODEL, header.sample, label=2, confidence=0.9, entropy=0.1)
                self.worker.publish(TOPICS.results, answer.encode())

    def close(self) -> None:
        self.worker.stop()
        if self._thread.ident:
            self._thread.join(WAIT_S)


def test_low_confidence_answers_are_kept_without_a_broker():
    sink = ListSink()
    dev = device(images(100, 0, 100), sink)
    dev.run()
    assert [(r.index, r.status, r.tier) for r in sink.results] == [
        (0, "final", "device"), (1, "standing", "device"), (2, "final", "device"),
    ]  # fmt: skip
    assert sink.results[1].reason == "no broker is configured"
    assert sink.results[0].class_name == "red" and sink.results[0].sample is None
    assert dev.counters == DeviceCounters(frames=3, device=2, standing=1)


def test_low_confidence_frames_get_a_provisional_and_then_a_cloud_answer(tmp_path):
    sink = ListSink()
    cloud = Cloud(tmp_path / "s.db", sink)
    dev = device(images(100, 0, 1, 100, 0), sink)
    cloud.courier.start()
    dev.run(cloud.courier)
    assert cloud.courier.wait_drained(WAIT_S)
    cloud.courier.stop(to_json(dev.counters))
    cloud.close()

    by_frame: dict[int, list[str]] = {}
    for result in sink.results:
        by_frame.setdefault(result.index, []).append(f"{result.tier} {result.status}")
    twice = ["device provisional", "cloud final"]
    assert by_frame == {
        0: ["device final"], 1: twice, 2: twice, 3: ["device final"], 4: twice,
    }  # fmt: skip
    run, total = cloud.courier.counters, cloud.courier.total()
    assert dev.counters == DeviceCounters(frames=5, device=2)
    assert (run.offloaded, run.answered, run.standing, run.duplicates) == (3, 3, 0, 0)
    assert cloud.courier.backlog() == Backlog()
    assert run.bytes == sum(r.bytes_sent for r in sink.results if r.tier == "cloud")
    assert total["frames"] == 5 and total["answered"] == 3
    assert {"preprocess", "engine", "decide", "emit", "hand over"} <= dev.stages.medians_ms().keys()


def test_samples_of_a_stopped_run_are_sent_first_in_the_next(tmp_path):
    sink = ListSink()
    silent = Cloud(tmp_path / "s.db", sink, answers=False)
    silent.courier.start()
    dev = device(images(0, 1), sink)
    dev.run(silent.courier)
    assert not silent.courier.wait_drained(0.05)
    silent.courier.stop(to_json(dev.counters))
    silent.close()
    assert silent.courier.backlog() == Backlog(pending=2)

    later = ListSink()
    cloud = Cloud(tmp_path / "s.db", later)
    cloud.courier.start()
    assert cloud.courier.wait_drained(WAIT_S)
    cloud.courier.stop()
    cloud.close()
    assert sorted((r.index, r.tier) for r in later.results) == [(0, "cloud"), (1, "cloud")]
    assert cloud.courier.backlog().lost == 0


def test_limit_ends_the_run_after_so_many_frames():
    sink = ListSink()
    source = images(*[100] * 10)
    device(source, sink).run(limit=3)
    assert len(sink.results) == 3


def test_stop_ends_the_run_and_closes_the_source():
    source = images(*[100] * 100)
    sink = ListSink()
    dev = device(source, sink)
    sink.result = lambda r: dev.stop()  # type: ignore[method-assign]
    dev.run()
    assert dev.counters.frames == 1 and source.closed and dev.stopped


def test_reader_that_went_away_ends_the_run():
    sink = ListSink(broken=True)
    dev = device(images(*[100] * 10), sink)
    dev.run()
    assert dev.counters.frames == 1


def test_broker_that_refuses_us_from_the_start_ends_the_run_with_its_sentence(tmp_path):
    sink = ListSink()
    cloud = Cloud(tmp_path / "s.db", sink, answers=False)
    error = LinkError("the broker refuses this user")
    cloud.link.start = lambda: cloud.link.events.put(Disconnected(0, error, fatal=True))  # type: ignore[method-assign]
    cloud.courier.start()
    with pytest.raises(LinkError, match="refuses this user"):
        for _ in range(1000):
            device(images(0), sink).run(cloud.courier)
            time.sleep(0.01)
    cloud.courier.stop()
    cloud.close()
    assert cloud.reports == ["the broker refuses this user"]
    assert all(r.status == "provisional" for r in sink.results)


def test_connection_that_ends_for_good_later_lets_the_device_go_on(tmp_path):
    sink = ListSink()
    cloud = Cloud(tmp_path / "s.db", sink)
    cloud.courier.start()
    dev = device(images(0), sink)
    dev.run(cloud.courier)
    assert cloud.courier.wait_drained(WAIT_S)
    cloud.link.connected = False
    cloud.link.events.put(Disconnected(1, LinkError("banned"), fatal=True))
    device(images(0, 100), sink).run(cloud.courier)
    assert cloud.courier.wait_drained(WAIT_S)  # no use in waiting
    assert cloud.courier.fatal is not None and cloud.courier.pending == 1
    cloud.courier.stop()
    cloud.close()


@pytest.mark.parametrize(("lost_first", "starts"), [(True, 2), (False, 1)])
def test_refused_connection_is_tried_again_later_and_a_taken_session_never(
    tmp_path, monkeypatch, lost_first, starts
):
    monkeypatch.setattr("edge_kit.delivery.courier.RECONNECT_MAX_S", 0.0)
    monkeypatch.setattr("edge_kit.delivery.courier.IDLE_S", 0.01)
    cloud = Cloud(tmp_path / "s.db", ListSink(), answers=False)
    started = []
    again = threading.Event()
    start = cloud.link.start

    def count() -> None:
        started.append(1)
        if len(started) == 1:
            start()
        else:
            again.set()

    cloud.link.start = count  # type: ignore[method-assign]
    cloud.courier.start()
    if lost_first:
        cloud.link.events.put(Disconnected(1, LinkError("lost")))
    cloud.link.events.put(Disconnected(1, LinkError("not any more"), fatal=True))
    assert again.wait(WAIT_S if lost_first else 0.3) is lost_first
    cloud.courier.stop()
    cloud.close()
    assert min(len(started), 2) == starts and cloud.courier.fatal is not None


def test_lost_and_restored_connection_are_reported_once_each(tmp_path):
    sink = ListSink()
    cloud = Cloud(tmp_path / "s.db", sink)
    cloud.courier.start()
    device(images(0), sink).run(cloud.courier)
    assert cloud.courier.wait_drained(WAIT_S)
    for _ in range(3):
        cloud.link.events.put(Disconnected(1, LinkError("it is gone")))
    cloud.link.connected = False
    cloud.link.start()
    device(images(0), sink).run(cloud.courier)
    assert cloud.courier.wait_drained(WAIT_S)
    cloud.courier.stop()
    cloud.close()
    assert cloud.reports == [
        "it is gone; samples wait in the spool, trying again", "connected to the broker again",
    ]  # fmt: skip


def test_failed_and_repaired_spool_are_reported_once_each(tmp_path):
    sink = ListSink()
    cloud = Cloud(tmp_path / "s.db", sink)
    settle, full = cloud.spool.settle, threading.Event()

    def maybe(*args, **kwargs):
        if full.is_set():
            raise SpoolError("the disk is full")
        return settle(*args, **kwargs)

    cloud.spool.settle = maybe  # type: ignore[method-assign]
    cloud.courier.start()
    full.set()
    device(images(0, 0), sink).run(cloud.courier)
    assert cloud.courier.wait_drained(WAIT_S)
    full.clear()
    device(images(1), sink).run(cloud.courier)
    assert cloud.courier.wait_drained(WAIT_S)
    cloud.courier.stop()
    cloud.close()
    assert cloud.reports == [
        "the disk is full; until that is repaired nothing can be offloaded",
        "the spool works again",
    ]  # fmt: skip
    assert [r.status for r in sink.results] == ["standing", "standing", "provisional", "final"]
    assert cloud.courier.trouble is not None  # the exit code tells


def test_engine_that_fails_raises_out_of_the_run():
    class Broken(FakeModel):
        def infer(self, pixels):
            raise EngineError("it broke")

    with pytest.raises(EngineError, match="it broke"):
        device(images(0), ListSink(), Broken()).run()


def test_error_on_the_couriers_thread_reaches_the_caller(tmp_path):
    sink = ListSink()
    cloud = Cloud(tmp_path / "s.db", sink, answers=False)

    def explode(result):
        raise RuntimeError("bug")

    cloud.courier._outbox._emit = explode
    cloud.courier.start()
    with pytest.raises(Exception, match=r"internal error while delivering.*bug"):
        for _ in range(1000):
            device(images(0), sink).run(cloud.courier)
            time.sleep(0.01)
    cloud.courier.stop()
    cloud.close()
