"""``edge-kit run``."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from edge_kit.device.config import Config, resolve
from edge_kit.device.output import JsonLines, LiveLine, PlainLines
from edge_kit.errors import EdgeKitError, UsageError
from edge_kit.terminal.command_line import write_message

__all__ = ["run"]

_PATH = click.Path(path_type=Path)
_OPTIONS = [
    click.option("--bundle", type=_PATH, help="Bundle to run; a directory or an .ekb file."),
    click.option("--camera", is_flag=False, flag_value="auto", metavar="[SPEC]",
                 help="A camera: nothing for the first one, a number, /dev/videoN, rtsp://…"),
    click.option("--source", type=_PATH, help="A photo, a folder or a video instead."),
    click.option("--fps", type=float, help="Frames a second."),
    click.option("--live", is_flag=True, default=None,
                 help="Play files as a camera: late frames are dropped, and counted."),
    click.option("--split", metavar="NAME", help="Split of the bundle; default: the tuned one."),
    click.option("--engine", type=click.Choice(["auto", "onnx", "tflite"]),
                 help="Engine; auto takes the faster one."),
    click.option("--threads", type=int, help="Threads of the engine."),
    click.option("--threshold", type=float,
                 help="T of the exit rule: 1 never sends, below 0 always."),
    click.option("--target-offload", type=float, metavar="SHARE",
                 help="Choose T so that about this share (0 to 1) is sent."),
    click.option("--broker", metavar="URL",
                 help="mqtt://[user@]host[:port] or mqtts://…; without one nothing is sent."),
    click.option("--device-id", help="Names topics and client; default: the host's name."),
    click.option("--password-file", type=_PATH, help="Password of the broker's user."),
    click.option("--tls-ca", type=_PATH, help="PEM file of the authorities to trust."),
    click.option("--tls-cert", type=_PATH, help="PEM file of this client's certificate."),
    click.option("--tls-key", type=_PATH, help="PEM file of its key."),
    click.option("--spool", type=_PATH, help="File that keeps unanswered samples."),
    click.option("--resend-s", type=float, help="Least wait for a result before sending again."),
    click.option("--linger", type=float, help="Seconds to wait for results at the end."),
    click.option("--limit", type=int, metavar="N", help="Stop after N frames."),
    click.option("--json", is_flag=True, default=None, help="Write JSON lines."),
]  # fmt: skip


def _with_options(command: Any) -> Any:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command(
    epilog="\b\nExamples:\n"
    "  edge-kit run model.ekb --camera\n"
    "  edge-kit run model.ekb --camera /dev/video2 --broker mqtt://192.168.1.10\n"
    "  edge-kit run model.ekb --source photos --json --target-offload 0.3 \\\n"
    "      --broker mqtts://cam1@broker.example --tls-ca ca.pem --password-file secret\n"
    "  edge-kit run model.ekb --source photos --fps 30 --live\n"
    "\b\nA password comes from --password-file or EDGE_KIT_PASSWORD. Every option can stand in\n"
    'the --config file (source = "photos") or the environment (EDGE_KIT_SOURCE=photos).'
)
@click.argument("bundle_path", metavar="[BUNDLE]", required=False, type=_PATH)
@click.option("--config", "config_file", type=_PATH, help="TOML file; flags win over it.")
@_with_options
def run(bundle_path: Path | None, config_file: Path | None, **flags: Any) -> None:
    """Classify frames on this device, and send what it is not sure of.

    Every frame is answered at once. A low-confidence one leaves as compressed int8 features, never
    as an image, and a second answer with the same sample id follows when a worker has finished it.
    """
    if bundle_path is not None and flags["bundle"] is not None:
        raise UsageError("the bundle is given twice", "use BUNDLE or --bundle, not both")
    flags["bundle"] = flags["bundle"] or bundle_path
    config = resolve(flags, os.environ, config_file)
    for line in config.lines():
        write_message(line)
    # Here, so that `edge-kit run --help` needs no engine and no paho.
    from edge_kit.device.service import Service
    from edge_kit.host.signals import stop_requests
    from edge_kit.host.systemd import Notifier

    sink = _sink(config)
    service = Service(config, sink, write_message, Notifier(os.environ))
    write_message(f"split {service.split}, tuning: {service.tuning}")
    write_message(f"engine {service.engine}, threshold {service.rule.threshold:g}")
    with stop_requests() as stop:
        stop.on_stop(service.stop)
        summary = service.run()
    if not config.json:
        write_message(_sentence(summary["run"]))
    if sink.problem:
        raise EdgeKitError(
            f"results can no longer be written: {sink.problem}",
            "see to where standard output goes; unanswered samples wait in the spool",
        )


def _sink(config: Config) -> JsonLines | LiveLine | PlainLines:
    if sys.stdout is None:
        raise UsageError("standard output is closed", "send it to /dev/null if nobody reads it")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if config.json:
        return JsonLines(sys.stdout)
    if sys.stdout.isatty():
        return LiveLine(sys.stdout)
    return PlainLines(sys.stdout)


def _sentence(run: Mapping[str, Any]) -> str:
    text = f"{run['frames']} frames, {run['device']} answered here, {run['offloaded']} sent"
    for key, words in (
        ("answered", "answered by the cloud"),
        ("pending", "wait in the spool for the next run"),
        ("standing", "low-confidence answers kept"),
        ("duplicates", "duplicate results ignored"),
        ("dropped", "frames dropped"),
        ("skipped", "unreadable files skipped"),
    ):
        if run.get(key):
            text += f", {run[key]} {words}"
    return f"{text}, {run['lost']} lost"
