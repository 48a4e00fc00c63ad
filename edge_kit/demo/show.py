"""Broker, worker and device over photos played as a camera: `run_demo`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edge_kit.bundle import Bundle
from edge_kit.demo.comparison import HalfAnswers, second_pass
from edge_kit.demo.figures import Answer, Figures
from edge_kit.errors import SourceError
from edge_kit.host.child_process import module_command
from edge_kit.host.json_process import Child
from edge_kit.sources.labelled import LabelledPhoto, lay_out, list_photos, pick

__all__ = ["DemoConfig", "Progress", "run_demo"]

START_TIMEOUT_S = 60.0
# The device may wait this long for answers after the last photo, so its silence may last longer.
LINGER_S = 30.0
SILENCE_S = 120.0

Progress = Callable[[str, int, int], None]
"""Told what is going on, how many photos are done, and of how many."""

Line = Mapping[str, Any]
"""What the device writes with ``--json``: docs/results.md."""


@dataclass(frozen=True)
class DemoConfig:
    """What to show.

    Attributes:
        bundle: A bundle, packed or not.
        photos: A folder for each class.
        limit: At most so many photos; None for all.
        engine: ``onnx``, ``tflite`` or ``auto``.
        threshold: Another T than the bundle's.
    """

    bundle: Path
    photos: Path
    fps: float = 10.0
    limit: int | None = None
    engine: str = "auto"
    threshold: float | None = None


def run_demo(config: DemoConfig, on_progress: Progress = lambda *_: None) -> Figures:
    """Run the demo; every process that it starts has ended when it returns or raises.

    Raises:
        BundleError, SourceError, EngineError: The bundle or the photos cannot be used.
        ChildError: Broker, worker or device failed; the message holds what it said last.
    """
    bundle = Bundle.open(config.bundle)
    photos = pick(list_photos(config.photos, bundle.manifest.classes), config.limit)
    with tempfile.TemporaryDirectory(prefix="edge-kit-demo-") as folder:
        work = Path(folder)
        (work / "camera").mkdir()
        named = lay_out(photos, work / "camera")
        output = _play(config, work, len(named), on_progress)
    say = "what each half alone would have said"
    on_progress(say, 0, len(photos))
    second = second_pass(
        bundle, photos, config.engine, lambda done: on_progress(say, done, len(photos))
    )
    answers = [
        _answer(photo, config.photos, halves, output.first.get(name), output.last.get(name))
        for (name, photo), halves in zip(named.items(), second.photos, strict=True)
        if halves is not None
    ]
    if not answers:
        raise SourceError(f"not one photo in {config.photos} can be read")
    return Figures(
        answers=answers,
        duplicates=int(output.counts.get("duplicates", 0)),
        engine=second.engine,
        threshold=bundle.rule.threshold if config.threshold is None else config.threshold,
        broker=output.broker,
        classes=bundle.manifest.classes,
    )


@dataclass
class _DeviceOutput:
    """What the device said: the first and the last answer to each photo, and its counters."""

    broker: str = ""
    first: dict[str, Line] = field(default_factory=dict)
    last: dict[str, Line] = field(default_factory=dict)
    counts: Line = field(default_factory=dict)

    def take(self, line: Line) -> None:
        if "summary" in line:
            self.counts = line["summary"]["run"]
        elif "tier" in line:
            self.first.setdefault(str(line["source"]), line)
            self.last[str(line["source"])] = line


def _play(config: DemoConfig, work: Path, total: int, on_progress: Progress) -> _DeviceOutput:
    """Start everything, let the device see every photo, and end everything."""
    output = _DeviceOutput()
    env = _clean_environment()
    with ExitStack() as children:

        def start(title: str, name: str, *arguments: str) -> Child:
            log = work / f"{title.split()[-1]}.log"
            return children.enter_context(Child(title, module_command(name, *arguments), log, env))

        on_progress("starting the broker", 0, total)
        broker = start("the broker", "cloud_kit.cli", "broker", "--port", "0", "--json")
        ready = broker.wait_for("ready", START_TIMEOUT_S)
        output.broker, url = str(ready["kind"]), str(ready["url"])
        on_progress("starting the worker", 0, total)
        worker = start(
            "the worker", "cloud_kit.cli", "worker", "--bundle", str(config.bundle),
            "--broker", url, "--wait-ms", "0", "--json",
        )  # fmt: skip
        worker.wait_for("connected", START_TIMEOUT_S)
        on_progress("starting the device", 0, total)
        device = start(
            "the device", "edge_kit.cli", "run", "--bundle", str(config.bundle),
            "--source", str(work / "camera"), "--fps", str(config.fps), "--engine", config.engine,
            "--broker", url, "--device-id", "demo", "--spool", str(work / "spool.db"),
            "--linger", str(LINGER_S), "--json",
            *([] if config.threshold is None else ["--threshold", str(config.threshold)]),
        )  # fmt: skip
        for line in device.events(SILENCE_S):
            output.take(line)
            on_progress("classifying", len(output.first), total)
    return output


def _answer(
    photo: LabelledPhoto, root: Path, halves: HalfAnswers, first: Line | None, last: Line | None
) -> Answer:
    name = photo.path.relative_to(root).as_posix()
    if first is None or last is None:
        return Answer(name, photo.label, halves)
    sent = first["bytes_sent"] or halves.message_bytes
    final = last["status"] != "provisional"
    return Answer(
        name,
        photo.label,
        replace(halves, device_label=first["label"], message_bytes=sent),
        final_label=last["label"] if final else None,
        tier=last["tier"],
        offloaded=first["sample"] is not None,
        entropy=first["entropy"],
        device_ms=first["latency_ms"],
        roundtrip_ms=last["round_trip_ms"],
    )


def _clean_environment() -> dict[str, str]:
    """Return the environment without settings meant for real devices and workers."""
    ours = ("EDGE_KIT_", "CLOUD_KIT_")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}
