"""The command line of the cloud half: ``cloud-kit worker``, ``health``, ``broker``."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import edge_kit
from cloud_kit.broker.launch import broker_process
from cloud_kit.worker.health import check
from cloud_kit.worker.service import serve
from cloud_kit.worker.settings import Settings, read_password
from cloud_kit.worker.worker import WorkerSettings
from edge_kit.errors import EdgeKitError, LinkError
from edge_kit.host.board import available_cores
from edge_kit.host.signals import stop_requests
from edge_kit.link.address import BrokerAddress

__all__ = ["cli", "main"]

_FILE = click.Path(path_type=Path)
_F = TypeVar("_F", bound=Callable[..., Any])


def _option(name: str, *names: str, **settings: Any) -> Callable[[_F], _F]:
    """Return an option that an environment variable can set too; the help says which."""
    variable = "CLOUD_KIT_" + name.upper().replace("-", "_")
    shown = settings.get("default") is not None
    return click.option(
        f"--{name}", *names, envvar=variable, show_envvar=True, show_default=shown, **settings
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(edge_kit.__version__, prog_name="cloud-kit")
def cli() -> None:
    """Run what finishes the samples that devices were unsure of."""


@cli.command(
    epilog="\b\nExamples:\n"
    "  cloud-kit worker --bundle shop.ekb --broker mqtt://localhost\n"
    "  CLOUD_KIT_PASSWORD_FILE=/run/secrets/worker cloud-kit worker --bundle a --bundle b \\\n"
    "      --broker mqtts://worker@broker.example --ca ca.pem --json"
)
@_option(
    "bundle",
    "bundles",
    type=_FILE,
    multiple=True,
    help="Bundle to serve; repeatable, ':' between paths in the environment.",
)
@_option("broker", default="mqtt://127.0.0.1:1883", help="mqtt://[user@]host[:port] or mqtts://…")
@_option("pool", default="workers", help="Workers of one pool share the messages.")
@_option("name", help="Name for people; by default the host's.")
@_option("batch", type=click.IntRange(1, 4096), default=16, help="Most samples of a batch.")
@_option(
    "wait-ms",
    type=click.FloatRange(0, 60_000),
    default=2.0,
    help="Longest wait for a fuller batch; 0 takes what is there.",
)
@_option(
    "threads",
    type=click.IntRange(1, 1024),
    help="Engine threads; by default the cores that are available.",
)
@_option("recent", type=click.IntRange(0), default=4096, help="Answers remembered for resends.")
@_option(
    "drain-s", type=click.FloatRange(0, 600), default=10.0, help="Longest that a clean stop takes."
)
@_option(
    "password-file", type=_FILE, help="File with the broker password (or set CLOUD_KIT_PASSWORD)."
)
@_option("ca", type=_FILE, help="PEM file of the authorities to trust.")
@_option("cert", type=_FILE, help="PEM file of this worker's certificate.")
@_option("key", type=_FILE, help="PEM file of its private key.")
@_option("health-file", type=_FILE, help="Where to write a heartbeat for 'cloud-kit health'.")
@_option(
    "report-s",
    type=click.FloatRange(0.1),
    default=10.0,
    help="Seconds between reports of the counters.",
)
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
    _log_to_stderr(verbose)
    address = BrokerAddress.parse(
        broker, password=read_password(password_file), ca=ca, cert=cert, key=key
    )
    settings = Settings(
        bundles=bundles,
        broker=address,
        pool=pool,
        threads=threads or available_cores(),
        work=WorkerSettings(batch, wait_ms / 1e3, recent, drain_s),
        health_file=health_file,
        report_s=report_s,
        **({"name": name} if name else {}),
    )
    with stop_requests() as stop:
        finished = serve(settings, _print_json if as_json else _print_line, stop)
    if not finished:
        raise LinkError(
            f"stopped after {drain_s:g} s with messages unfinished",
            "devices resend them; a longer --drain-s would have finished them",
        )


@cli.command()
@click.option(
    "--file",
    "path",
    type=_FILE,
    required=True,
    envvar="CLOUD_KIT_HEALTH_FILE",
    show_envvar=True,
    help="The worker's --health-file.",
)
@click.option(
    "--max-age",
    type=float,
    default=15.0,
    show_default=True,
    help="Oldest heartbeat that counts as alive, seconds.",
)
@click.option("--alive", is_flag=True, help="Do not ask for a connection (a liveness probe).")
def health(path: Path, max_age: float, alive: bool) -> None:
    """Say whether a worker is well; exit code 0 or 1."""
    verdict = check(path, max_age_s=max_age, alive_only=alive)
    click.echo(verdict.detail)
    if not verdict.ok:
        sys.exit(1)


@cli.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=1883,
    show_default=True,
    help="TCP port on 127.0.0.1; 0 takes a free one.",
)
@click.option(
    "--kind",
    type=click.Choice(["auto", "mosquitto", "iotcore"]),
    default="auto",
    show_default=True,
    help="Which broker to run.",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON lines.")
def broker(port: int, kind: str, as_json: bool) -> None:
    """Run a broker on this machine's loopback, for demonstrations and development.

    It has no passwords and keeps nothing. Deployments: see docs/cloud.md.
    """
    _log_to_stderr(False)
    say = _print_json if as_json else _print_line
    with stop_requests() as stop, broker_process(port, kind) as running:
        say({"event": "ready", "url": running.url, "port": running.port, "kind": running.kind,
             "pid": running.process.pid})  # fmt: skip
        while not stop.wait(0.5):
            if running.process.poll() is not None:
                raise LinkError(f"{running.kind} ended by itself", "start it again")
    say({"event": "stopped"})


def main() -> None:
    """Run the command line; the entry point ``cloud-kit``."""
    try:
        cli.main(prog_name="cloud-kit", standalone_mode=False)
    except EdgeKitError as error:
        click.echo(f"cloud-kit: error: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # Who read our output went away; a second complaint at exit would help nobody.
        sys.stderr.close()
        sys.exit(0)


def _print_json(event: dict[str, Any]) -> None:
    click.echo(json.dumps(event))


def _print_line(event: dict[str, Any]) -> None:
    rest = "  ".join(
        f"{k}={_plain(v)}" for k, v in event.items() if k != "event" and v not in ({}, None)
    )
    click.echo(f"{event['event']}  {rest}".rstrip())


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{k}:{v}" for k, v in value.items())
    return ",".join(str(v) for v in value) if isinstance(value, list) else str(value)


def _log_to_stderr(verbose: bool) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="cloud-kit: %(levelname)s %(message)s",
        stream=sys.stderr,
    )
