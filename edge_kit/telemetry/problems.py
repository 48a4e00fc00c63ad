"""Lasting problems: each is said once when it begins, and once when it is over."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Problems"]


class Problems:
    """What is wrong at the moment.

    Args:
        report: Told a sentence for people.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._now: dict[str, str] = {}
        # While a problem lasts its sentence may change to and fro: each is said once.
        self._said: dict[str, set[str]] = {}

    def update(self, about: str, sentence: str, over: str, *, prospect: str = "") -> None:
        """Note how things are.

        Args:
            about: What it is about; one problem at a time each.
            sentence: The problem; empty when there is none.
            over: What to say when a problem is over.
            prospect: What follows from it; said, and not compared.
        """
        if sentence == self._now.get(about, ""):
            return
        if not sentence:
            del self._now[about], self._said[about]
            self._report(over)
            return
        self._now[about] = sentence
        said = self._said.setdefault(about, set())
        if sentence not in said:
            said.add(sentence)
            self._report(f"{sentence}{prospect}")

    def sentences(self) -> list[str]:
        """Return all that is wrong now."""
        return list(self._now.values())
