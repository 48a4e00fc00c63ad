"""``cloud-kit health``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from cloud_kit.worker.health import check

__all__ = ["health"]


@click.command()
@click.option("--file", "path", type=click.Path(path_type=Path), required=True,
              envvar="CLOUD_KIT_HEALTH_FILE", show_envvar=True,
              help="The worker's --health-file.")  # fmt: skip
@click.option("--max-age", type=float, default=15.0, show_default=True,
              help="Oldest heartbeat that counts as alive, seconds.")  # fmt: skip
@click.option("--alive", is_flag=True, help="Do not ask for a connection (a liveness probe).")
def health(path: Path, max_age: float, alive: bool) -> None:
    """Say whether a worker is healthy; exit code 0 or 1."""
    verdict = check(path, max_age_s=max_age, alive_only=alive)
    click.echo(verdict.detail)
    if not verdict.ok:
        sys.exit(1)
