"""How an export tells what it is doing."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Silent", "Watch"]


class Watch(Protocol):
    """Someone who follows an export."""

    def progress(self, stage: str, done: int, whole: int) -> None:
        """Hear that `done` of `whole` steps of a stage are finished."""
        ...

    def say(self, text: str) -> None:
        """Hear one line."""
        ...


class Silent:
    """Nobody watches; the lines are kept.

    Attributes:
        lines: What was said.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def progress(self, stage: str, done: int, whole: int) -> None:
        """Ignore it."""

    def say(self, text: str) -> None:
        """Keep it."""
        self.lines.append(text)
