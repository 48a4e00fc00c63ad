"""How an export tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["Progress", "SilentProgress", "Tick", "ignore"]

Tick = Callable[[int, int], None]  # steps done, steps in total


def ignore(done: int, total: int) -> None:
    """Be a `Tick` that nobody watches."""


class Progress(Protocol):
    """Someone who follows an export."""

    def step(self, stage: str, done: int, total: int) -> None:
        """Hear that `done` of `total` steps of a stage are finished."""

    def say(self, text: str) -> None:
        """Hear one line."""


class SilentProgress:
    """Nobody watches; the lines are kept.

    Attributes:
        lines: What was said.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, stage: str, done: int, total: int) -> None:
        """Ignore it."""

    def say(self, text: str) -> None:
        """Keep it."""
        self.lines.append(text)
