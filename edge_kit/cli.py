"""The command ``edge-kit``: a group whose commands are found by name and loaded when used."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

import click

from edge_kit import __version__
from edge_kit.errors import EdgeKitError, MissingExtraError

__all__ = ["cli", "main", "run_group"]

PLUGINS = "edge_kit.commands"

# What `edge-kit --help` says of each, so that it need not import them.
_BUILT_IN = {
    "run": "Classify frames on this device; send what it is not sure of.",
    "demo": "Show device, broker and worker on this machine.",
    "doctor": "Say what this board can do and what is amiss.",
    "bench": "Measure how fast, how hot and how right a board runs a bundle.",
    "bundle": "Show, verify or pack a bundle.",
}


class LazyGroup(click.Group):
    """Load built-in commands and those of other packages only when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, built-in ones first."""
        return [*(n for n in _BUILT_IN if _is_there(n)), *sorted(_plugins())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command; None when there is none of this name."""
        if cmd_name in _BUILT_IN and _is_there(cmd_name):
            module = importlib.import_module(f"edge_kit.commands.{cmd_name}")
            command = getattr(module, cmd_name)
        elif cmd_name in _plugins():
            command = _load(_plugins()[cmd_name])
        else:
            return None
        if not isinstance(command, click.Command):
            raise EdgeKitError(f"the command {cmd_name} is damaged", "install edge-kit again")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands without importing any."""
        plugins = _plugins()
        rows = [
            (n, _BUILT_IN[n] if n in _BUILT_IN else f"From {plugins[n].module.split('.')[0]}.")
            for n in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _is_there(name: str) -> bool:
    return importlib.util.find_spec(f"edge_kit.commands.{name}") is not None


def _plugins() -> dict[str, EntryPoint]:
    return {e.name: e for e in entry_points(group=PLUGINS)}


def _load(plugin: EntryPoint) -> object:
    try:
        return plugin.load()
    except ModuleNotFoundError as error:
        package = (error.name or plugin.module).split(".")[0]
        raise MissingExtraError(package, "export", f"edge-kit {plugin.name}") from None


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="See edge-kit COMMAND --help for examples.",
)
@click.version_option(__version__, prog_name="edge-kit")
@click.option("-v", "--verbose", count=True, help="Say more on standard error; twice for all.")
def cli(verbose: int) -> None:
    """Classify on the board what it is sure of; send features of the rest to a worker."""
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, stream=sys.stderr, format="edge-kit: %(message)s")


def run_group(group: click.Command, prog: str, args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; a user's mistake shows no traceback.

    Args:
        group: The click command.
        prog: Its name in messages.
        args: Arguments; by default the process's.
    """
    code = _called(group, prog, args)
    if sys.stdout is None:  # the caller closed it
        return code
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code == 0:
            return _failed(prog, error)
    return code


def _called(group: click.Command, prog: str, args: Sequence[str] | None) -> int:
    try:
        code = group.main(args=args, prog_name=prog, standalone_mode=False)
    except EdgeKitError as error:
        click.echo(f"{prog}: error: {error}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except OSError as error:
        return _failed(prog, error)
    return code if isinstance(code, int) else 0


def _failed(prog: str, error: OSError) -> int:
    """Say what the machine refuses, such as a full disk; a traceback explains nothing of it."""
    if isinstance(error, BrokenPipeError):
        return 141  # whoever read our output has gone
    logging.getLogger(__name__).debug("where it happened", exc_info=error)
    click.echo(f"{prog}: error: {error}", err=True)
    return EdgeKitError.exit_code


def main() -> int:
    """Run ``edge-kit``."""
    return run_group(cli, "edge-kit")


if __name__ == "__main__":
    sys.exit(main())
