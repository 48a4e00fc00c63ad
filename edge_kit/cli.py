"""The command ``edge-kit``: its own commands, and those that other packages add."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import entry_points

import click

from edge_kit import __version__
from edge_kit.terminal.command_line import run_group
from edge_kit.terminal.lazy_group import Entry, LazyGroup, entries

__all__ = ["cli", "main"]

PLUGINS = "edge_kit.commands"

_COMMANDS = entries(
    "edge_kit.commands",
    {
        "run": "Classify frames on this device; send what it is not sure of.",
        "demo": "Show device, broker and worker on this machine.",
        "doctor": "Say what works on this board and what does not.",
        "bench": "Measure how fast, how hot and how right a board runs a bundle.",
        "bundle": "Show, verify or pack a bundle.",
    },
)


def _plugins() -> dict[str, Entry]:
    found = sorted(entry_points(group=PLUGINS), key=lambda point: point.name)
    return {p.name: Entry(p.value, f"From {p.module.split('.')[0]}.", "export") for p in found}


@click.group(
    cls=LazyGroup,
    entries=_COMMANDS,
    plugins=_plugins,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="See edge-kit COMMAND --help for examples.",
)
@click.version_option(__version__, prog_name="edge-kit")
@click.option("-v", "--verbose", count=True, help="Say more on standard error; twice for all.")
def cli(verbose: int) -> None:
    """Classify on the board what it is sure of; send features of the rest to a worker."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, stream=sys.stderr, format="edge-kit: %(message)s")


def main() -> int:
    """Run ``edge-kit``."""
    return run_group(cli, "edge-kit")


if __name__ == "__main__":
    sys.exit(main())
