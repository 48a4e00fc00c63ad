"""The command ``cloud-kit``: worker, its health, and a broker for trials."""

from __future__ import annotations

import sys

import click

from edge_kit import __version__
from edge_kit.terminal.command_line import run_group
from edge_kit.terminal.lazy_group import LazyGroup, entries

__all__ = ["cli", "main"]

_COMMANDS = entries(
    "cloud_kit.commands",
    {
        "worker": "Finish samples that devices send, until told to stop.",
        "health": "Say whether a worker is healthy; exit code 0 or 1.",
        "broker": "Run a broker on this machine's loopback, for trials.",
    },
)


@click.group(
    cls=LazyGroup,
    entries=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="cloud-kit")
def cli() -> None:
    """Run what finishes the samples that devices were unsure of."""


def main() -> int:
    """Run ``cloud-kit``."""
    return run_group(cli, "cloud-kit")


if __name__ == "__main__":
    sys.exit(main())
