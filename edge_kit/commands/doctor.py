"""``edge-kit doctor``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from edge_kit.doctor import Check
    from edge_kit.link import Link
    from edge_kit.link.address import BrokerAddress

__all__ = ["doctor"]

_PATH = click.Path(path_type=Path)
_MARKS = {True: ("ok", "green"), None: ("note", "yellow"), False: ("FAIL", "red")}


@click.command(
    epilog="\b\nExamples:\n"
    "  edge-kit doctor\n"
    "  edge-kit doctor --bundle clothing.ekb --broker mqtt://hub.local\n"
    "  edge-kit doctor --json"
)
@click.option("--bundle", type=_PATH, help="Also check a bundle and try its end models here.")
@click.option("--broker", metavar="URL", help="Also connect to mqtt:// or mqtts://[user@]host.")
@click.option("--ca", type=_PATH, help="PEM file of the authorities to trust for mqtts://.")
@click.option("--cert", type=_PATH, help="PEM file of this device's certificate.")
@click.option("--key", type=_PATH, help="PEM file of its private key.")
@click.option("--password-file", type=_PATH,
              help="File with the broker's password; else EDGE_KIT_PASSWORD.")  # fmt: skip
@click.option("--spool", type=_PATH, help="Where doubtful samples will be kept.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.pass_context
def doctor(
    ctx: click.Context, bundle: Path | None, broker: str | None, ca: Path | None,
    cert: Path | None, key: Path | None, password_file: Path | None, spool: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Say what this board is and which engines, cameras and services work on it.

    Exits with 0 when nothing failed; notes are allowed.
    """
    # Here, so that `edge-kit --help` stays quick.
    from edge_kit.doctor import examine

    address = _address(broker, ca, cert, key, password_file) if broker else None
    found = examine(bundle=bundle, broker=address, spool=spool, make_link=_make_link)
    checks = list(found) if as_json else _show(found)
    well = all(check.ok is not False for check in checks)
    if as_json:
        click.echo(json.dumps({"well": well, "checks": [c.to_json() for c in checks]}, indent=1))
    else:
        failed = sum(check.ok is False for check in checks)
        click.echo("all well" if well else f"{failed} of {len(checks)} checks failed")
    ctx.exit(0 if well else 1)


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


def _address(
    url: str, ca: Path | None, cert: Path | None, key: Path | None, password_file: Path | None
) -> BrokerAddress:
    import os

    from edge_kit.errors import ConfigError
    from edge_kit.link.address import BrokerAddress

    password = os.environ.get("EDGE_KIT_PASSWORD", "")
    if password_file is not None:
        try:
            password = password_file.read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{password_file} cannot be read ({error.strerror})") from None
    return BrokerAddress.parse(url, password=password, ca=ca, cert=cert, key=key)


def _make_link(address: BrokerAddress, client_id: str) -> Link:
    from edge_kit.link.mqtt import MqttLink

    return MqttLink(address, client_id)
