"""Progress of a command on standard error: one bar a stage, or a few lines where it is piped."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Self, TextIO

import click

__all__ = ["ProgressBars"]

_UPDATES = 200


class ProgressBars:
    """Shows how far each stage is; a context manager that closes its last bar.

    Args:
        named: Name each stage in a line of its own where there is no terminal, instead of silence.
        stream: Where to; standard error when left out.

    Attributes:
        stage: The stage under way; empty before the first and after `close`.
    """

    def __init__(self, named: bool = False, stream: TextIO | None = None) -> None:
        self.stage = ""
        self._named = named
        self._stream = stream or sys.stderr  # None where the caller closed it
        self._terminal = self._stream is not None and self._stream.isatty()
        self._bar: Any = None
        self._done = 0

    def step(self, stage: str, done: int, total: int) -> None:
        """Show that `done` of `total` steps of a stage are finished."""
        if stage != self.stage or done < self._done:
            self.close()
            self._begin(stage, total)
            self.stage = stage
        if self._bar is not None:
            self._bar.update(done - self._done)
            if done >= total:
                self._end_bar()
        self._done = done

    def say(self, text: str) -> None:
        """Write one line; go on where it cannot be written."""
        self.close()
        with contextlib.suppress(OSError):
            click.echo(text, file=self._stream, err=True)

    def close(self) -> None:
        """Leave the line of the stage under way."""
        self._end_bar()
        self.stage, self._done = "", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _begin(self, stage: str, total: int) -> None:
        if self._terminal and total > 0:
            bar = click.progressbar(
                length=total,
                label=f"{stage:>12}",
                file=self._stream,
                show_pos=True,
                update_min_steps=max(1, total // _UPDATES),
            )
            self._bar = bar.__enter__()
        elif self._named and not self._terminal:
            self.say(stage)

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None
