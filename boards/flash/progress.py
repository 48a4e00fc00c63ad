"""Progress of a long copy on standard error: how much, and how long it will take."""

from __future__ import annotations

import sys
from typing import Any

import click

__all__ = ["Meter"]


class Meter:
    """Shows progress, a bar for each stage; call it with stage, bytes done and bytes in all.

    Attributes:
        stage: The stage under way; empty when there is none.
    """

    def __init__(self) -> None:
        self.stage = ""
        self._bar: Any = None

    def __call__(self, stage: str, done: int, whole: int) -> None:
        """Show how far a stage is."""
        if stage != self.stage:
            self.close()
            self.stage = stage
            self._bar = click.progressbar(
                length=whole, label=f"{stage:<9}", file=sys.stderr, width=30,
                item_show_func=lambda _: f"{self._bar.pos >> 20:,} of {whole >> 20:,} MiB",
            )  # fmt: skip
            self._bar.__enter__()
        self._bar.update(done - self._bar.pos)

    def close(self) -> None:
        """Leave the bar of the stage under way."""
        if self.stage:
            self._bar.__exit__(None, None, None)
        self.stage = ""
