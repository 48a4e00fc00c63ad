"""Run a command line to its exit code, whatever becomes of its output."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

import click

from edge_kit.errors import EdgeKitError

__all__ = ["run_group"]

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
        _report(prog, error)
        return error.exit_code
    except click.ClickException as error:
        _write_to_stderr(error.show)
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
    _report(prog, error)
    return EdgeKitError.exit_code


def _report(prog: str, error: Exception) -> None:
    _write_to_stderr(lambda: click.echo(f"{prog}: error: {error}", err=True))


def _write_to_stderr(write: Callable[[], None]) -> None:
    """Write a message; where nobody can read it, the exit code still says what happened."""
    with contextlib.suppress(OSError):
        write()
