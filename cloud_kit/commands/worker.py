"""``cloud-kit worker``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from cloud_kit.commands.output import event_printer, log_to_stderr
from cloud_kit.worker.service import serve
from cloud_kit.worker.settings import ServiceSettings, find_password
from cloud_kit.worker.worker import WorkerSettings
from edge_kit.errors import LinkError
from edge_kit.host.board import available_cores
from edge_kit.host.signals import stop_requests
from edge_kit.link.address import BrokerAddress

__all__ = ["worker"]

_FILE = click.Path(path_type=Path)
_F = TypeVar("_F", bound=Callable[..., Any])


def _option(name: str, *names: str, **settings: Any) -> Callable[[_F], _F]:
    """Return an option that an environment variable can set too; the help says which."""
    variable = "CLOUD_KIT_" + name.upper().replace("-", "_")
    shown = settings.get("default") is not None
    return click.option(
        f"--{name}", *names, envvar=variable, show_envvar=True, show_default=shown, **settings
    )


@click.command(
    epilog="\b\nExamples:\n"
    "  cloud-kit worker --bundle shop.ekb --broker mqtt://localhost\n"
    "  CLOUD_KIT_PASSWORD_FILE=/run/secrets/worker cloud-kit worker --bundle a --bundle b \\\n"
    "      --broker mqtts://worker@broker.example --ca ca.pem --json"
)
@_option("bundle", "bundles", type=_FILE, multiple=True,
         help="Bundle to serve; repeatable, ':' between paths in the environment.")  # fmt: skip
@_option("broker", default="mqtt://127.0.0.1:1883", help="mqtt://[user@]host[:port] or mqtts://…")
@_option("pool", default="workers", help="Workers of one pool share the messages.")
@_option("name", help="Name for people; by default the host's.")
@_option("batch", type=click.IntRange(1, 4096), default=16, help="Most samples of a batch.")
@_option("wait-ms", type=click.FloatRange(0, 60_000), default=2.0,
         help="Longest wait for a fuller batch; 0 takes what is there.")  # fmt: skip
@_option("threads", type=click.IntRange(1, 1024),
         help="Engine threads; by default the cores that are available.")  # fmt: skip
@_option("recent", type=click.IntRange(0), default=4096, help="Answers remembered for resends.")
@_option("drain-s", type=click.FloatRange(0, 600), default=10.0,
         help="Longest that a clean stop takes.")  # fmt: skip
@_option("password-file", type=_FILE,
         help="File with the broker password (or set CLOUD_KIT_PASSWORD).")  # fmt: skip
@_option("ca", type=_FILE, help="PEM file of the authorities to trust.")
@_option("cert", type=_FILE, help="PEM file of this worker's certificate.")
@_option("key", type=_FILE, help="PEM file of its private key.")
@_option("health-file", type=_FILE, help="Where to write a heartbeat for 'cloud-kit health'.")
@_option("report-s", type=click.FloatRange(0.1), default=10.0,
         help="Seconds between reports of the counters.")  # fmt: skip
@_option("json", "as_json", is_flag=True, help="Write JSON lines.")
@click.option("--verbose", "-v", is_flag=True, help="Log each refusal to stderr.")
def worker(
    *, bundles: tuple[Path, ...], broker: str, pool: str, name: str | None, batch: int,
    wait_ms: float, threads: int | None, recent: int, drain_s: float, password_file: Path | None,
    ca: Path | None, cert: Path | None, key: Path | None, health_file: Path | None,
    report_s: float, as_json: bool, verbose: bool,
) -> None:  # fmt: skip
    """Finish samples that devices send, until told to stop.

    Exit code 0 means that everything taken was answered.
    """
    log_to_stderr(verbose=verbose)
    address = BrokerAddress.parse(
        broker, password=find_password(password_file), ca=ca, cert=cert, key=key
    )
    threads = threads or available_cores()
    settings = ServiceSettings(
        bundles=bundles,
        broker=address,
        pool=pool,
        threads=threads,
        work=WorkerSettings(batch, wait_ms / 1e3, recent, drain_s, lanes=min(2, threads)),
        health_file=health_file,
        report_s=report_s,
        **({"name": name} if name else {}),
    )
    with stop_requests() as stop:
        finished = serve(settings, event_printer(as_json), stop)
    if not finished:
        raise LinkError(
            f"stopped after {drain_s:g} s with messages unfinished",
            "devices resend them; a longer --drain-s would have finished them",
        )
