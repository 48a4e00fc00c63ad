"""An export's progress on a terminal: one bar a stage, on stderr, lines only when piped."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, TextIO

import click

__all__ = ["Console"]


class Console:
    """A `Progress` that writes to a stream; a context manager that closes its last bar.

    Args:
        stream: Where to; stderr when left out.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._stage = ""
        self._bar: Any = None
        self._shown = 0

    def __enter__(self) -> Console:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def step(self, stage: str, done: int, total: int) -> None:
        """Move the stage's bar; without a terminal do nothing."""
        if not self._stream.isatty() or total < 1:
            return
        if stage != self._stage or done < self._shown:
            self._end()
            self._stage, self._shown = stage, 0
            self._bar = click.progressbar(
                length=total,
                label=f"{stage:>12}",
                file=self._stream,
                show_pos=True,
                update_min_steps=max(1, total // 200),
            )
            self._bar.__enter__()
        if self._bar is not None:
            self._bar.update(done - self._shown)
            self._shown = done
        if done >= total:
            self._end()
            self._stage, self._shown = stage, done

    def say(self, text: str) -> None:
        """Write one line."""
        self._end()
        click.echo(text, file=self._stream)

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
        self._bar, self._stage, self._shown = None, "", 0
