"""What this board is, what works on it, and why the rest does not.

Each check is a function that returns `Check`s and raises nothing; `examine` runs them all.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import queue
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edge_kit.bundle import Bundle, machine_arch
from edge_kit.bundle.labelled_photos import read_reference
from edge_kit.engines.load import PACKAGES
from edge_kit.engines.probe import probe
from edge_kit.engines.select import Trial
from edge_kit.errors import BundleError
from edge_kit.host.board import Board, clock_synchronised, default_threads, read_board
from edge_kit.host.child_process import ChildError, ask_child
from edge_kit.host.clock import CLOCK_FLOOR, ClockWait
from edge_kit.link.address import BrokerAddress
from edge_kit.link.link import Connected, Disconnected, Link
from edge_kit.sources.picamera import connected_cameras, find_picamera2, why_no_picamera2
from edge_kit.sources.v4l2 import list_devices

__all__ = [
    "Check",
    "check_board",
    "check_broker",
    "check_bundle",
    "check_cameras",
    "check_clock",
    "check_disk",
    "check_engines",
    "examine",
]

_IMPORT_TIMEOUT_S = 60.0
_BROKER_TIMEOUT_S = 15.0
_MIB = 1 << 20
# Below the first a spool of doubtful frames soon fills; below the second SQLite itself fails.
_DISK_LITTLE = 256 * _MIB
_DISK_NONE = 16 * _MIB

_MODULES = {
    "onnx": (("onnxruntime", "onnxruntime"),),
    "tflite": (
        ("tflite_runtime.interpreter", "tflite-runtime"),
        ("ai_edge_litert.interpreter", "ai-edge-litert"),
    ),
}


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
        name: What was looked at.
        ok: True; False when `edge-kit run` would fail; None for what is worth knowing.
        detail: The finding.
        hint: What to do; may be empty.
    """

    name: str
    ok: bool | None
    detail: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


def examine(
    *,
    bundle: Path | None = None,
    broker: BrokerAddress | None = None,
    spool: Path | None = None,
    make_link: Callable[[BrokerAddress, str], Link] | None = None,
    clock: ClockWait | None = None,
) -> Iterator[Check]:
    """Run every check that applies, yielding each finding as it comes.

    Args:
        bundle: Also open it and try its end models.
        broker: Also connect to it.
        spool: Where samples will be kept; by default the disk of this directory is looked at.
        make_link: Makes the link of a client id; needed with `broker`.
        clock: A broker with certificates is left alone while this wait is not over.
    """
    yield check_board(read_board())
    yield from check_engines()
    if bundle is not None:
        yield from check_bundle(bundle)
    yield from check_cameras()
    yield check_clock()
    yield check_disk(spool or Path())
    if broker is not None and make_link is not None:
        if clock is not None and broker.tls and (sentence := _clock_wait(clock)):
            yield Check("broker", None, sentence, clock.hint())
        else:
            yield check_broker(broker, make_link)


def check_board(board: Board) -> Check:
    """Say what this is."""
    facts = [
        board.model or "unknown model",
        board.arch,
        f"{board.cores} core{'s' if board.cores != 1 else ''}",
        f"{board.memory_free // _MIB} of {board.memory // _MIB} MiB free",
        board.system,
        f"Python {board.python}",
    ]
    if board.temperature:
        facts.append(f"{board.temperature:.0f} °C")
    return Check("board", True, ", ".join(f for f in facts if f))


def check_engines(
    run: Callable[[str], str] | None = None,
) -> Iterator[Check]:
    """Import each engine in a process of its own.

    Args:
        run: Returns why a module cannot be imported, empty when it can; injected by tests.
    """
    run = run or _import_problem
    found = {engine: _engine(engine, run) for engine in _MODULES}
    none = not any(c.ok for c in found.values())
    for engine, check in found.items():
        # One engine is enough; the other's absence matters only when there is none at all.
        ok = False if none else check.ok
        hint = check.hint or f"pip install 'edge-kit[{engine}]'"
        yield Check(check.name, ok, check.detail, "" if check.ok else hint)


def _engine(engine: str, run: Callable[[str], str]) -> Check:
    problems = []
    for module, package in _MODULES[engine]:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            continue
        problem = run(module)
        if not problem:
            return Check(f"engine {engine}", True, f"{package} {_version(package)}")
        problems.append(f"{package} {_version(package)}: {problem}")
    if problems:
        hint = "install a build for this CPU and this Python; tflite-runtime needs numpy below 2"
        return Check(f"engine {engine}", None, "; ".join(problems), hint)
    missing = f"{PACKAGES[engine]} is not installed"
    if engine == "onnx" and machine_arch() == "armv7l":
        missing += "; it has no wheel for a 32-bit system, which gets tflite-runtime only"
        hint = "pip install 'edge-kit[tflite]', and a bundle with an end model for tflite"
        return Check(f"engine {engine}", None, missing, hint)
    return Check(f"engine {engine}", None, missing)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"


def _import_problem(module: str) -> str:
    """Import a module in a child; return why it cannot be used, empty when it can."""
    code = f"import {module}; from edge_kit.host.child_process import answer_parent; "
    try:
        ask_child([sys.executable, "-c", code + "answer_parent(str)"], module, _IMPORT_TIMEOUT_S)
    except ChildError as error:
        return error.what
    return ""


def check_bundle(path: Path, trial: Trial = probe) -> Iterator[Check]:
    """Open a bundle, checking every hash, and try its end models in child processes."""
    try:
        bundle = Bundle.open(path)
        files, labelled = bundle.end_files(), read_reference(bundle)
    except BundleError as error:
        yield Check("bundle", False, error.what, error.hint)
        return
    manifest = bundle.manifest
    yield Check(
        "bundle",
        True,
        f"{manifest.name}, {len(manifest.classes)} classes, model {manifest.model_hash[:16]}, "
        f"T = {bundle.rule.threshold:g}, "
        f"{labelled.sentence() if labelled else 'no labelled photos'}",
    )
    threads = default_threads()
    results = [(f, trial(bundle, f, threads)) for f in files]
    any_works = any(result.ok for _f, result in results)
    for file, result in results:
        detail = result.error
        if result.ok:
            detail = f"{result.seconds_best * 1e3:.2f} ms a frame with {threads} threads"
            if result.total:
                detail += f", {result.agree} of {result.total} reference photos answered alike"
        yield Check(f"end model {file.path}", result.ok or (None if any_works else False), detail)


def check_cameras(dev: Path = Path("/dev")) -> Iterator[Check]:
    """List the cameras. A board without one is fine: it may play files."""
    driver = find_picamera2()
    cameras = connected_cameras(driver)
    if cameras:
        yield Check("camera picamera2", True, ", ".join(cameras))
    devices = list_devices(dev)
    for device in devices:
        hint = "add this user to the group 'video' and log in anew" if device.problem else ""
        yield Check(
            f"camera {device.path}",
            None if device.problem else True,
            device.problem or device.card,
            hint,
        )
    if not cameras and not devices:
        why = "libcamera sees no camera" if driver is not None else why_no_picamera2()
        yield Check("camera", None, f"no V4L2 camera; {why}")


def check_clock(
    synchronised: Callable[[], bool | None] = clock_synchronised,
    now: Callable[[], float] = time.time,
) -> Check:
    """Say whether a time server set the clock.

    Args:
        synchronised: Asks the kernel; None when it does not tell.
        now: Unix time, seconds.
    """
    hint = "start a time service, for example: sudo timedatectl set-ntp true"
    if now() < CLOCK_FLOOR:
        stamp = time.strftime("%Y-%m-%d", time.gmtime(now()))
        return Check("clock", False, f"it says {stamp}; certificates will be refused", hint)
    answer = synchronised()
    if answer is None:
        return Check("clock", None, "whether it is synchronised cannot be told here")
    if not answer:
        return Check("clock", None, "not synchronised; capture times may be off", hint)
    return Check("clock", True, "synchronised")


def _clock_wait(clock: ClockWait) -> str:
    sentence = clock.look()
    return "" if clock.over else sentence


def check_disk(spool: Path) -> Check:
    """Look at the disk that the spool is, or will be, on."""
    place = spool.absolute()
    try:
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
    except OSError as error:
        return Check("disk", False, f"{place} cannot be looked at ({error.strerror})")
    detail = f"{free // _MIB} MiB free under {place}"
    if not os.access(place, os.W_OK):
        return Check("disk", False, f"this user may not write to {place}", "name another --spool")
    if free < _DISK_NONE:
        return Check("disk", False, detail, "free some space, or name another --spool")
    if free < _DISK_LITTLE:
        return Check("disk", None, detail, "doubtful frames may have to be dropped when offline")
    return Check("disk", True, detail)


def check_broker(
    broker: BrokerAddress,
    make_link: Callable[[BrokerAddress, str], Link],
    timeout_s: float = _BROKER_TIMEOUT_S,
) -> Check:
    """Connect as a client of its own name, and leave again."""
    name = "broker"
    link = make_link(broker, f"edge-kit-doctor-{uuid.uuid4().hex[:8]}")
    start = time.monotonic()
    link.start()
    try:
        event = link.events.get(timeout=timeout_s)
    except queue.Empty:
        return Check(name, False, f"{broker.url} does not answer within {timeout_s:.0f} s")
    finally:
        link.stop()
    if isinstance(event, Disconnected) and event.error is not None:
        return Check(name, False, event.error.what, event.error.hint)
    if not isinstance(event, Connected):
        return Check(name, False, f"{broker.url} answers strangely ({type(event).__name__})")
    took = (time.monotonic() - start) * 1e3
    limit = f", messages up to {event.max_packet} bytes" if event.max_packet else ""
    return Check(name, True, f"{broker.url} accepts us after {took:.0f} ms{limit}")
