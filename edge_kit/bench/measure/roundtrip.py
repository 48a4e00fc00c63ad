"""Bytes a message and the way to a worker and back: a real device, sending every frame."""

from __future__ import annotations

import os
import queue
import re
import socket
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np

from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.measurement import Configuration
from edge_kit.bench.measure.task import Effort
from edge_kit.bundle import Bundle
from edge_kit.bundle.labelled_photos import read_reference
from edge_kit.bundle.selftest import sample_pixels
from edge_kit.errors import LinkError, MissingExtraError
from edge_kit.host.child_process import module_command
from edge_kit.host.json_process import Child
from edge_kit.link.address import BrokerAddress
from edge_kit.link.link import Disconnected
from edge_kit.link.mqtt import MqttLink
from edge_kit.sources.labelled import LabelledPhoto, lay_out

__all__ = [
    "RoundTrip",
    "device_environment",
    "device_name",
    "measure_round_trip",
    "reach",
    "summarize",
]

LINGER_S = 30.0
SILENCE_S = 180.0
REACH_S = 30.0
_ODD = re.compile(r"[^A-Za-z0-9._-]")
_MOST_NAME = 64
_KEPT = re.compile(r"EDGE_KIT_(PASSWORD|TLS)")


@dataclass(frozen=True)
class RoundTrip:
    """What sending cost.

    Attributes:
        broker: Its address, without a password.
        sent: Samples that left.
        answered: Of those, by a worker.
        bytes_mean: Mean size of a message, header included; 0 when none left.
        round_trip: From the first send to the answer; None without answers.
    """

    broker: str
    engine: str
    threads: int
    sent: int
    answered: int
    bytes_mean: float
    round_trip: Latency | None = field(metadata={"key": "round_trip_ms"})


def device_name() -> str:
    """Return the id of this board as a device that only benchmarks."""
    return f"bench-{_ODD.sub('-', socket.gethostname())}"[:_MOST_NAME]


def device_environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment, of a device's settings only those that prove who it is."""
    return {
        name: value
        for name, value in (os.environ if env is None else env).items()
        if not name.startswith("EDGE_KIT_") or _KEPT.match(name)
    }


def reach(broker: BrokerAddress, client_id: str, timeout_s: float = REACH_S) -> None:
    """Connect once, so that a broker out of reach is known before minutes of measuring.

    Raises:
        LinkError: It cannot be reached, refuses us, or cannot be trusted.
    """
    link = MqttLink(broker, client_id)
    link.start()
    try:
        event = link.events.get(timeout=timeout_s)
    except queue.Empty:
        raise LinkError(f"{broker.url} gives no answer within {timeout_s:.0f} s") from None
    finally:
        link.stop()
    if isinstance(event, Disconnected) and event.error is not None:
        raise event.error


def measure_round_trip(
    bundle: Bundle,
    configuration: Configuration,
    effort: Effort,
    broker: str,
    device_id: str,
    fps: float,
    options: Sequence[str],
) -> RoundTrip:
    """Let ``edge-kit run`` send every frame to a worker that listens at the broker.

    Args:
        bundle: What to run; without a folder of photos its own are sent, over and over.
        configuration: Engine and threads of the device.
        effort: Which photos, and how many frames.
        broker: Its address.
        device_id: Of the device; its status stays on the broker.
        fps: A second. Slower than the cloud answers, so that no message waits for another.
        options: More of ``edge-kit run``, such as certificates.

    Raises:
        EdgeKitError: The device fails, for example because the broker refuses it.
    """
    with tempfile.TemporaryDirectory(prefix="edge-kit-bench-") as name:
        folder = Path(name)
        source = effort.photos or _lay_out(bundle, folder / "photos", effort.frames)
        engine, threads = configuration.engine, configuration.threads
        arguments = [
            "run", str(bundle.root), "--split", bundle.split.name,
            "--source", str(source), "--fps", f"{fps:g}",
            "--engine", engine, "--threads", str(threads), "--threshold", "-1", "--broker", broker,
            "--device-id", device_id, "--spool", str(folder / "spool.db"), "--limit",
            str(effort.frames), "--linger", f"{LINGER_S:g}", "--json", *options,
        ]  # fmt: skip
        log = folder / "device.log"
        command = module_command("edge_kit.cli", *arguments)
        with Child("the device", command, log, device_environment()) as child:
            lines = list(child.events(SILENCE_S + LINGER_S))
    return summarize(lines, broker, engine, threads)


def summarize(
    lines: Sequence[Mapping[str, Any]], broker: str, engine: str, threads: int
) -> RoundTrip:
    """Put together what a device wrote: docs/results.md."""
    sent = [line for line in lines if line.get("status") == "provisional"]
    cloud = [line for line in lines if line.get("tier") == "cloud"]
    trips = [line["round_trip_ms"] for line in cloud if line["round_trip_ms"] is not None]
    return RoundTrip(
        broker=broker,
        engine=engine,
        threads=threads,
        sent=len(sent),
        answered=len(cloud),
        bytes_mean=round(float(np.mean([s["bytes_sent"] for s in sent])), 1) if sent else 0.0,
        round_trip=Latency.of([t / 1e3 for t in trips]) if trips else None,
    )


def _lay_out(bundle: Bundle, folder: Path, frames: int) -> Path:
    """Make the bundle's labelled photos a folder that a device plays, else others of its size."""
    reference = read_reference(bundle)
    if reference is None:
        return _write_pixels(bundle, folder, frames)
    folder.mkdir()
    photos = (LabelledPhoto(p.path, p.label) for p in cycle(reference.photos))
    lay_out(list(islice(photos, frames)), folder)
    return folder


def _write_pixels(bundle: Bundle, folder: Path, frames: int) -> Path:
    """Write the photos of the self-test, or noise, as files."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Pillow", "photos", "measuring the round trip") from None
    pixels = sample_pixels(bundle)
    folder.mkdir()
    for index in range(frames):
        Image.fromarray(pixels[index % len(pixels)]).save(folder / f"{index:06}.png")
    return folder
