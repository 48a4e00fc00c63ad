"""How much of a frame's time is not the engine's?

Runs the real pipeline over photos that were decoded before, twice: with every frame answered on
the device, and with every frame sent (encoded, spooled with flushes to disk, reported, answered by
an in-memory worker, recorded). A third pass at the bundle's own threshold tells how often each of
the two happens.

Stages that a frame waits for (preprocess, engine, decide, emit of an answer) are measured by the
clock. What the courier does on its own thread (encode, spool, report) runs here on the same thread
and is measured by the CPU that it takes; how long it waits for the disk is shown too.

    python benchmarks/device_overhead.py --bundle clothing.ekb --photos photos --json
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, TextIO

from edge_kit.bundle import Bundle
from edge_kit.delivery.outbox import Outbox, Sample
from edge_kit.delivery.results import Result
from edge_kit.delivery.spool import Row, Spool
from edge_kit.device.loop import Device
from edge_kit.device.output import JsonLines
from edge_kit.engines.end import EndModel
from edge_kit.engines.select import open_end_model
from edge_kit.errors import EdgeKitError
from edge_kit.exits import ExitRule
from edge_kit.link import Delivery, MemoryBroker, MemoryLink, Subscription
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.folder import FolderSource
from edge_kit.sources.source import MemorySource
from edge_kit.telemetry.stages import Stages
from edge_kit.wire import FeatureMessage, ResultMessage, Topics

ASSETS = Path(__file__).parents[1] / "edge_kit" / "demo" / "assets"
BUDGET = 0.25
ALL_LOCAL, ALL_SENT = 1.0, -1.0
# What is done for every frame, and what else for one that stays or leaves; order of the table.
LOCAL = ("preprocess", "engine", "decide", "emit")
SENT = ("preprocess", "engine", "decide", "encode", "spool", "emit")


class Watch:
    """Add up the clock's and the CPU's seconds of what runs inside."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter(), time.thread_time()

    def __exit__(self, *_error: object) -> None:
        self.wall += time.perf_counter() - self._began[0]
        self.cpu += time.thread_time() - self._began[1]

    def reset(self) -> None:
        """Start anew."""
        self.wall = self.cpu = 0.0


class TimedSink(JsonLines):
    """JSON lines into nothing, timed."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.watch = Watch()

    def result(self, result: Result) -> None:
        """Write a line."""
        with self.watch:
            super().result(result)


class TimedSpool(Spool):
    """A spool whose transactions are timed."""

    watch = Watch()

    def settle(self, *args: Any, **more: Any) -> list[Row]:
        """Store."""
        with self.watch:
            return super().settle(*args, **more)


class InlineCourier:
    """The courier's work on the caller's thread, with a worker that answers at once."""

    error = fatal = None
    ever_connected = True

    def __init__(self, bundle: Bundle, spool: TimedSpool, sink: TimedSink) -> None:
        manifest = bundle.manifest
        self.topics = Topics("benchmark")
        self.link = MemoryLink(MemoryBroker(), [Subscription(self.topics.results)])
        self.outbox = Outbox(
            spool,
            self.link,
            self.topics,
            classes=manifest.classes,
            model=manifest.wire_id,
            emit=sink.result,
        )
        self.spool, self.sink = spool, sink
        self.stages = Stages()
        self.link.start()
        self.handle_all()

    def submit(self, sample: Sample) -> None:
        """Encode, store, publish, report; then take the answer in."""
        whole, spool, emit = Watch(), self.spool.watch, self.sink.watch
        spool.reset()
        emit.reset()
        with whole:
            self.outbox.submit([sample])
        self.answer()
        with whole:
            self.handle_all()
            self.outbox.flush()
        self.stages.add("encode", whole.cpu - spool.cpu - emit.cpu)
        self.stages.add("spool", spool.cpu)
        self.stages.add("emit", emit.cpu)
        self.stages.add("wait for the disk", spool.wall - spool.cpu)

    def answer(self) -> None:
        """Be the worker; not timed, it is another machine's work."""
        sent = self.link.broker.published[-1]
        header = FeatureMessage.decode(sent.payload).header
        message = ResultMessage(header.model, header.sample, confidence=1.0, entropy=0.0)
        self.link.broker.route(
            Delivery(self.topics.results, message.encode(), 1, False, header.sample, None, 0, 0)
        )
        self.link.broker.published.clear()

    def handle_all(self) -> None:
        """Take in all that the link brought."""
        while not self.link.events.empty():
            self.outbox.handle(self.link.events.get())


def run(
    bundle: Bundle, model: EndModel, images: list[Any], threshold: float, folder: Path
) -> tuple[Device, dict[str, float]]:
    """Run one pass; return the device and the median of each stage, milliseconds."""
    manifest = bundle.manifest
    with Path(os.devnull).open("w", encoding="utf-8") as nothing:
        sink = TimedSink(nothing)
        device = Device(
            MemorySource(images),
            Preprocessor(manifest.preprocessing),
            model,
            ExitRule(threshold, bundle.rule.temperature),
            classes=manifest.classes,
            wire_id=manifest.wire_id,
            cut=bundle.index,
            sink=sink,
        )
        spool = TimedSpool(folder / f"spool{threshold}.db")
        courier = InlineCourier(bundle, spool, sink)
        device.run(courier)  # type: ignore[arg-type]
        spool.close()
    return device, {**device.stages.medians_ms(), **courier.stages.medians_ms()}


def measure(bundle: Bundle, photos: Path, engine: str, limit: int, rounds: int) -> dict[str, Any]:
    """Run all passes and put the figures together."""
    frames = FolderSource(photos).frames()
    images = [frame.pixels for frame, _ in zip(frames, range(limit), strict=False)]
    model = open_end_model(bundle, engine)
    prepare = Preprocessor(bundle.manifest.preprocessing)
    for image in images[:20]:
        model.infer(prepare(image))
    with tempfile.TemporaryDirectory(prefix="edge-kit-benchmark-") as name:
        folder = Path(name)
        mixed, _ = run(bundle, model, images, bundle.rule.threshold, folder)
        _, local = run(bundle, model, images * rounds, ALL_LOCAL, folder)
        _, sent = run(bundle, model, images * rounds, ALL_SENT, folder)
    share = mixed.counters.device / mixed.counters.frames
    ways = {
        "device": {stage: local[stage] for stage in LOCAL},
        "sent": {stage: sent[stage] for stage in SENT},
    }
    total = {way: sum(stages.values()) for way, stages in ways.items()}
    extra = {way: total[way] - stages["engine"] for way, stages in ways.items()}
    whole = share * total["device"] + (1 - share) * total["sent"]
    return {
        "engine": model.engine.name,
        "threads": model.engine.threads,
        "photos": len(images),
        "threshold": bundle.rule.threshold,
        "device_share": round(share, 4),
        "disk_wait_ms": sent["wait for the disk"],
        "median_ms": ways,
        "overhead": {way: round(extra[way] / total[way], 4) for way in ways},
        "overhead_mixed": round((share * extra["device"] + (1 - share) * extra["sent"]) / whole, 4),
        "budget": BUDGET,
    }


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--bundle", type=Path, default=ASSETS / "clothing.ekb")
    parser.add_argument("--photos", type=Path, default=ASSETS / "photos")
    parser.add_argument("--engine", choices=["auto", "onnx", "tflite"], default="auto")
    parser.add_argument("--limit", type=int, default=100, help="photos")
    parser.add_argument("--rounds", type=int, default=3, help="passes over them")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        bundle = Bundle.open(args.bundle)
        figures = measure(bundle, args.photos, args.engine, args.limit, args.rounds)
    except EdgeKitError as error:
        print(f"device_overhead: error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(figures, indent=1) if args.json else table(figures))
    return 0 if figures["overhead_mixed"] <= BUDGET else 1


def table(figures: dict[str, Any]) -> str:
    """Return the figures as text."""
    lines = [
        f"{figures['engine']} with {figures['threads']} threads, {figures['photos']} photos, "
        f"T = {figures['threshold']:g}: {figures['device_share']:.0%} answered on the device",
        f"{'median ms':<12}{'answered here':>14}{'sent':>10}",
    ]
    device, sent = figures["median_ms"]["device"], figures["median_ms"]["sent"]
    for stage in SENT:
        here = f"{device[stage]:.3f}" if stage in device else "-"
        lines.append(f"{stage:<12}{here:>14}{sent[stage]:>10.3f}")
    lines.append(f"{'(disk wait)':<12}{'-':>14}{figures['disk_wait_ms']:>10.3f}")
    over = figures["overhead"]
    lines.append(f"{'not engine':<12}{over['device']:>14.1%}{over['sent']:>10.1%}")
    lines.append(
        f"over all frames {figures['overhead_mixed']:.1%} are not the engine's "
        f"(budget {figures['budget']:.0%})"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
