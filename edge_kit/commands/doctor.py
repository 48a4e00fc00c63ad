"""``edge-kit doctor``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edge_kit.device.config import resolve

if TYPE_CHECKING:
    from edge_kit.doctor import Check
    from edge_kit.link import Link, Subscription
    from edge_kit.link.address import BrokerAddress

__all__ = ["doctor"]

_PATH = click.Path(path_type=Path)
_MARKS = {True: ("ok", "green"), None: ("note", "yellow"), False: ("FAIL", "red")}


@click.command(
    epilog="\b\nExamples:\n"
    "  edge-kit doctor\n"
    "  edge-kit doctor --bundle clothing.ekb --broker mqtt://hub.local\n"
    "  edge-kit doctor --config /etc/edge-kit.toml --json\n"
    "\b\nWhat is not given here comes from --config and the environment, as for `edge-kit run`."
)
@click.option("--config", "config_file", type=_PATH, help="The TOML file that `run` will use.")
@click.option("--bundle", type=_PATH, help="Also check a bundle and try its end models here.")
@click.option("--broker", metavar="URL", help="Also connect to mqtt:// or mqtts://[user@]host.")
@click.option("--password-file", type=_PATH, help="Password of the broker's user.")
@click.option("--tls-ca", type=_PATH, help="PEM file of the authorities to trust.")
@click.option("--tls-cert", type=_PATH, help="PEM file of this client's certificate.")
@click.option("--tls-key", type=_PATH, help="PEM file of its key.")
@click.option("--spool", type=_PATH, help="File that keeps unanswered samples.")
@click.option("--json", is_flag=True, default=None, help="One JSON object on stdout.")
@click.pass_context
def doctor(ctx: click.Context, /, config_file: Path | None, **flags: Any) -> None:
    """Say what this board is and which engines, cameras and services work on it.

    Exits with 0 when nothing failed; notes are allowed.
    """
    config = resolve(flags, os.environ, config_file)
    # Here, so that `edge-kit doctor --help` stays quick.
    from edge_kit.doctor import examine
    from edge_kit.host.clock import ClockWait

    found = examine(config, _make_link, ClockWait() if config.wait_for_clock else None)
    checks = list(found) if config.json else _show(found)
    failed = sum(check.ok is False for check in checks)
    if config.json:
        answer = {"well": not failed, "checks": [c.to_json() for c in checks]}
        click.echo(json.dumps(answer, indent=1, ensure_ascii=False))
    else:
        click.echo(f"{failed} of {len(checks)} checks failed" if failed else "all well")
    ctx.exit(1 if failed else 0)


def _show(found: Iterable[Check]) -> list[Check]:
    """Print each finding as it comes: some take seconds."""
    checks = []
    for check in found:
        checks.append(check)
        word, colour = _MARKS[check.ok]
        click.echo(f"{click.style(f'{word:<4}', fg=colour)}  {check.name}: {check.detail}")
        if check.hint and not check.ok:
            click.echo(f"      → {check.hint}")
    return checks


def _make_link(
    address: BrokerAddress, client_id: str, subscriptions: Sequence[Subscription]
) -> Link:
    from edge_kit.link.mqtt import MqttLink

    return MqttLink(address, client_id, subscriptions)
