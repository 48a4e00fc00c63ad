"""A group of commands that are imported when they are called."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from edge_kit.errors import MissingExtraError

__all__ = ["Entry", "LazyGroup", "entries"]


@dataclass(frozen=True)
class Entry:
    """A command that is not loaded yet.

    Attributes:
        target: Where it is, ``package.module:name``.
        help: What the help of the group says of it.
        extra: The extra that installs what it imports; empty when nothing can be missing.
    """

    target: str
    help: str
    extra: str = ""


def entries(package: str, helps: Mapping[str, str]) -> dict[str, Entry]:
    """Return the commands of a package that has a module for each, with a command of that name.

    Args:
        package: Such as ``edge_kit.commands``.
        helps: By name, what the help of the group says.
    """
    return {name: Entry(f"{package}.{name}:{name}", text) for name, text in helps.items()}


class LazyGroup(click.Group):
    """Import a command's module only when that command is called.

    Args:
        entries: Commands by name, in the order of the help.
        plugins: Finds the commands of other packages; called only where they matter.
    """

    def __init__(
        self,
        *args: Any,
        entries: Mapping[str, Entry],
        plugins: Callable[[], Mapping[str, Entry]] = dict,
        **more: Any,
    ) -> None:
        super().__init__(*args, **more)
        self._entries = entries
        self._plugins = plugins

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return [*self._entries, *self._plugins()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command; None when there is none of this name.

        Raises:
            MissingExtraError: A package that it imports is not installed.
        """
        entry = self._entries.get(cmd_name) or self._plugins().get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry.target.partition(":")
        try:
            command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if not entry.extra:
                raise
            package = (error.name or module).split(".")[0]
            raise MissingExtraError(package, entry.extra, f"{ctx.info_name} {cmd_name}") from None
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands without importing any."""
        entries = {**self._entries, **self._plugins()}
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in entries.items()])
