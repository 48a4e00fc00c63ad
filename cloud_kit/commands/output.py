"""How the commands write their events: lines for people or JSON on stdout, logs on stderr."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import click

__all__ = ["event_printer", "log_to_stderr"]


def event_printer(as_json: bool) -> Callable[[dict[str, Any]], None]:
    """Return what writes one event a line, as JSON or for people."""
    return _print_json if as_json else _print_line


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


def log_to_stderr(*, verbose: bool) -> None:
    """Log warnings, and when `verbose` each refusal, to stderr."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="cloud-kit: %(levelname)s %(message)s",
        stream=sys.stderr,
    )
