"""Run a command line to its exit code, whatever becomes of its output."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence

import click

from edge_kit.errors import EdgeKitError

__all__ = ["run_group", "write_message"]

INTERRUPTED = 130
BROKEN_PIPE = 141


def run_group(group: click.Command, prog: str, args: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code; a user's mistake shows no traceback.

    Args:
        group: The click command.
        prog: Its name in messages.
        args: Arguments; by default the process's.
    """
    _reserve_descriptors()
    code = _run(group, prog, args)
    if (error := _flush_stdout()) is not None and code == 0:
        code = _system_error(prog, error)
    return code


def _run(group: click.Command, prog: str, args: Sequence[str] | None) -> int:
    try:
        code = group.main(args=args, prog_name=prog, standalone_mode=False)
    except EdgeKitError as error:
        write_message(f"error: {error}", prog)
        return error.exit_code
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except OSError as error:
        return _system_error(prog, error)
    return code if isinstance(code, int) else 0


def _reserve_descriptors() -> None:
    """Open what the caller closed of 0, 1 and 2, or the next file would take that number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def _flush_stdout() -> OSError | None:
    if sys.stdout is None:  # the caller closed it
        return None
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would complain once more while it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _system_error(prog: str, error: OSError) -> int:
    """Say what the machine refuses, such as a full disk; a traceback explains nothing of it."""
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE  # whoever read our output has gone
    logging.getLogger(__name__).debug("where it happened", exc_info=error)
    write_message(f"error: {error}", prog)
    return EdgeKitError.exit_code


def write_message(text: str, prog: str = "edge-kit") -> None:
    """Write one line for people to standard error; go on where that cannot be written."""
    with contextlib.suppress(OSError):
        click.echo(f"{prog}: {text}", err=True)
