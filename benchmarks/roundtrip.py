"""What does the way to the cloud and back add to the time of the two engines?

A device sends every photo of a folder, one after the other, to a worker on the same machine with a
batch wait of 0, through a real mosquitto on loopback. Reported are the round trip (from the first
send to the answer) and the whole latency (from capture to the answer, with preprocessing and the
flushed write to the spool), each beside the engine times that it contains. The budget is for the
round trip: what comes before the send is the business of ``device_overhead.py``.

    python benchmarks/roundtrip.py --bundle clothing.ekb --photos photos --json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from edge_kit.errors import EdgeKitError
from edge_kit.host.broker import broker_process
from edge_kit.host.child_process import module_command
from edge_kit.host.json_process import Child
from edge_kit.link import Connected, Delivery, Subscription
from edge_kit.link.mqtt import BrokerAddress, MqttLink
from edge_kit.wire import Refusal, ResultMessage, Topics

ASSETS = Path(__file__).parents[1] / "edge_kit" / "demo" / "assets"
BUDGET_MS = 5.0
TIMEOUT_S = 120.0
DEVICE = "bench"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run broker, worker and device once."""
    with tempfile.TemporaryDirectory() as name, broker_process(kind="mosquitto") as broker:
        directory = Path(name)
        work = ["worker", "--bundle", str(options.bundle), "--broker", broker.url, "--json"]
        work += ["--wait-ms", "0", "--threads", str(options.threads)]
        play = ["run", str(options.bundle), "--source", str(options.photos), "--json"]
        play += ["--fps", str(options.fps), "--threshold", "-1", "--broker", broker.url]
        play += ["--device-id", DEVICE, "--spool", str(directory / "spool.db")]
        play += ["--threads", str(options.threads), "--limit", str(options.limit)]
        play += ["--engine", options.engine]
        listener = MqttLink(
            BrokerAddress.parse(broker.url), "watch", [Subscription(Topics(DEVICE).results, qos=0)]
        )
        listener.start()
        try:
            if not isinstance(listener.events.get(timeout=TIMEOUT_S), Connected):
                raise EdgeKitError("the listener could not connect")
            with Child(
                "the worker", module_command("cloud_kit.cli", *work), directory / "w.log"
            ) as cloud:
                cloud.wait_for("connected", TIMEOUT_S)
                run = module_command("edge_kit.cli", *play)
                with Child("the device", run, directory / "d.log") as device:
                    lines = list(device.events(TIMEOUT_S))
        finally:
            listener.stop()
        answers = []
        while not listener.events.empty():
            event = listener.events.get()
            if isinstance(event, Delivery):
                answers.append(ResultMessage.decode(event.payload))
    return summarize(lines, answers)


def summarize(lines: list[dict[str, Any]], answers: list[ResultMessage]) -> dict[str, Any]:
    """Return the figures from what the device printed and the worker sent."""
    cloud = [line for line in lines if line.get("tier") == "cloud"]
    summary = next(line["summary"] for line in lines if "summary" in line)
    if not cloud:
        raise EdgeKitError("the worker answered nothing")
    trips = [line["round_trip_ms"] for line in cloud if line["round_trip_ms"] is not None]
    worker_ms = statistics.median(a.engine_us / 1e3 for a in answers if a.refusal is Refusal.NONE)
    device_ms = summary["stages_ms"]["engine"]
    latency = statistics.median(line["latency_ms"] for line in cloud)
    return {
        "samples": len(cloud),
        "device_engine_ms": round(device_ms, 3),
        "worker_engine_ms": round(worker_ms, 3),
        "round_trip_ms": round(statistics.median(trips), 3),
        "round_trip_p95_ms": round(statistics.quantiles(trips, n=20)[-1], 3),
        "round_trip_added_ms": round(statistics.median(trips) - worker_ms, 3),
        "latency_ms": round(latency, 3),
        "latency_added_ms": round(latency - worker_ms - device_ms, 3),
        "spool_ms": summary["stages_ms"].get("spool"),
        "budget_ms": BUDGET_MS,
        "lost": summary["run"]["lost"],
    }


def main() -> int:
    """Measure, print, and fail when more than the budget is added."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bundle", type=Path, default=ASSETS / "clothing.ekb")
    parser.add_argument("--photos", type=Path, default=ASSETS / "photos")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fps", type=float, default=10.0)
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        figures = measure(options)
    except EdgeKitError as error:
        print(f"roundtrip: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:22s}{value}")
    return 0 if figures["round_trip_added_ms"] <= BUDGET_MS else 1


if __name__ == "__main__":
    sys.exit(main())
