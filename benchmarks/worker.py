"""How much of what a bare onnxruntime loop does is left when it comes over MQTT?

Each round runs both on the same tail at the same batch size: a loop that does nothing but call
onnxruntime, then the worker, a process of its own behind a real mosquitto. The worker is frozen
while the broker fills up, so that the publisher takes no part in what is measured. The clock runs
from its thaw to its last answer: a clock that started at the first answer would not count batches
that run beside the first one. Who counts the answers costs next to nothing, since devices are
elsewhere; the broker's share of this machine does count against the worker.

    python benchmarks/worker.py --bundle clothing.ekb --batch 16 --threads 1 --json
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from edge_kit.bundle import Bundle
from edge_kit.errors import EdgeKitError
from edge_kit.host.broker import broker_process
from edge_kit.host.child_process import module_command
from edge_kit.host.json_process import Child
from edge_kit.link import Connected, Published
from edge_kit.link.mqtt import BrokerAddress, MqttLink
from edge_kit.wire import FeatureHeader, FeatureMessage, Topics

ASSETS = Path(__file__).parents[1] / "edge_kit" / "demo" / "assets"
BUDGET = 0.9
TIMEOUT_S = 120.0
WINDOW = 15  # below what any broker takes unacknowledged


def bare_loop(bundle: Bundle, batch: int, threads: int, seconds: float) -> float:
    """Return samples a second of onnxruntime alone, with its own defaults."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    file = bundle.tail_file()
    session = ort.InferenceSession(
        str(bundle.path(file)), options, providers=["CPUExecutionProvider"]
    )
    features = {"features": samples(bundle, batch, seed=1)}
    session.run(None, features)
    count, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        session.run(None, features)
        count += batch
    return count / elapsed


def samples(bundle: Bundle, count: int, seed: int) -> np.ndarray:
    """Return features in the tail's own layout, mostly small values, as real ones are."""
    spec = bundle.tail_file().inputs[0]
    rng = np.random.default_rng(seed)
    values = np.rint(rng.normal(0, 2, (count, *spec.shape)))
    return np.clip(values, -100, 100).astype(spec.dtype)


def messages(bundle: Bundle, count: int) -> list[tuple[bytes, bytes]]:
    """Return sample ids and encoded messages."""
    spec, cut = bundle.tail_file().inputs[0], bundle.split.features
    header_spec = type(spec)(
        "features", spec.shape, spec.layout, spec.dtype, cut.scale, cut.zero_point
    )
    made = []
    for index, features in enumerate(samples(bundle, count, seed=2)):
        sample = index.to_bytes(4, "little") + os.urandom(4)
        header = FeatureHeader(bundle.manifest.wire_id, 0, header_spec, sample, 0, 0, 0.9)
        made.append((sample, FeatureMessage(header, features).encode()))
    return made


class Listener:
    """Hears results at next to no cost; a device's work is not what is measured here.

    Args:
        port: Of the broker on loopback.
        topic: Subscribed to with QoS 0.
    """

    def __init__(self, port: int, topic: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        # CONNECT: MQTT 5, clean start, no keep-alive, no properties. SUBSCRIBE: packet 1.
        self._send(0x10, _counted("MQTT") + b"\x05\x02\0\0\0" + _counted("listener"))
        self._send(0x82, b"\0\x01\0" + _counted(topic) + b"\0")
        self._unread = self._read()
        while next(self._unread)[0] != 0x90:  # SUBACK
            pass

    def packets(self) -> Iterator[bytes]:
        """Yield PUBLISH packets as they come."""
        return (packet for packet in self._unread if packet[0] & 0xF0 == 0x30)

    def _send(self, kind: int, body: bytes) -> None:
        self._socket.sendall(bytes([kind, len(body)]) + body)

    def _read(self) -> Iterator[bytes]:
        data = b""
        while more := self._socket.recv(1 << 16):
            data, at = data + more, 0
            while (end := _packet_end(data, at)) is not None:
                yield data[at:end]
                at = end
            data = data[at:]
        raise EdgeKitError("the broker ended the connection of the listener")

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


def _packet_end(data: bytes, at: int) -> int | None:
    """Return where the packet at `at` ends; None when not all of it is there."""
    length = shift = 0
    for index in range(at + 1, len(data)):
        length |= (data[index] & 127) << shift
        shift += 7
        if data[index] < 128:
            end = index + 1 + length
            return end if end <= len(data) else None
    return None


def _counted(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def served(
    link: MqttLink, results: Listener, worker: Child, batch: list[tuple[bytes, bytes]]
) -> float:
    """Return samples a second of the worker, from its thaw to its last answer."""
    topics = Topics("bench")
    os.kill(worker.pid, signal.SIGSTOP)
    waiting: set[int] = set()
    for sample, payload in batch:
        while len(waiting) >= WINDOW:
            event = link.events.get(timeout=TIMEOUT_S)
            if isinstance(event, Published):
                waiting.discard(event.token)
        waiting.add(
            link.publish(
                topics.features, payload, correlation=sample, response_topic=topics.results
            )
        )
    while waiting:
        event = link.events.get(timeout=TIMEOUT_S)
        if isinstance(event, Published):
            waiting.discard(event.token)
    begin = time.perf_counter()
    os.kill(worker.pid, signal.SIGCONT)
    for _ in itertools.islice(results.packets(), len(batch)):
        end = time.perf_counter()
    return len(batch) / (end - begin)


def measure(bundle: Bundle, path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run all rounds, one of each in turn."""
    bare: list[float] = []
    over_mqtt: list[float] = []
    with tempfile.TemporaryDirectory() as directory, broker_process(kind="mosquitto") as broker:
        arguments = ["worker", "--bundle", str(path), "--broker", broker.url, "--json"]
        arguments += ["--batch", str(options.batch), "--threads", str(options.threads)]
        arguments += ["--wait-ms", str(options.wait_ms), "--report-s", "3600"]
        log = Path(directory) / "worker.log"
        with Child("the worker", module_command("cloud_kit.cli", *arguments), log) as worker:
            worker.wait_for("connected", TIMEOUT_S)
            address = BrokerAddress.parse(broker.url)
            link = MqttLink(address, "bench")
            link.start()
            if not isinstance(link.events.get(timeout=TIMEOUT_S), Connected):
                raise EdgeKitError("the publisher could not connect")
            results = Listener(broker.port, Topics("bench").results)
            try:
                for _ in range(options.rounds):
                    bare.append(bare_loop(bundle, options.batch, options.threads, options.seconds))
                    count = max(4 * options.batch, int(bare[-1] * options.seconds))
                    count = min(count, 8000) // options.batch * options.batch
                    over_mqtt.append(served(link, results, worker, messages(bundle, count)))
            finally:
                results.close()
                link.stop()
    ratios = [w / b for b, w in zip(bare, over_mqtt, strict=True)]
    return {
        "bare_per_s": round(statistics.median(bare), 1),
        "worker_per_s": round(statistics.median(over_mqtt), 1),
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "budget": BUDGET,
        "batch": options.batch,
        "threads": options.threads,
        "cores": len(os.sched_getaffinity(0)),
        "rounds": options.rounds,
    }


def main() -> int:
    """Measure, print, and fail when the ratio is under its budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, default=ASSETS / "clothing.ekb")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wait-ms", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each loop")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        figures = measure(Bundle.open(options.bundle), options.bundle, options)
    except EdgeKitError as error:
        print(f"worker: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in itertools.islice(figures.items(), 5):
            print(f"{name:14s}{value}")
    return 0 if figures["ratio"] >= BUDGET else 1


if __name__ == "__main__":
    sys.exit(main())
