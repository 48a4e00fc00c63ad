"""``edge-kit image``: a group whose commands are loaded when they are called."""

from __future__ import annotations

import importlib

import click

__all__ = ["image"]

# Name: the module that has it under the same name, and what `edge-kit image --help` says of it.
_COMMANDS = {
    "boards": ("boards.commands.boards", "List the boards and what is known of them."),
    "build": ("boards.commands.build", "Build an image for a board from Debian packages."),
    "boot": ("boards.commands.boot", "Boot an image in QEMU until the device answers on MQTT."),
    "customize": ("boards.commands.customize", "Put edge-kit into a stock Raspberry Pi OS image."),
    "flash": ("boards.commands.flash", "Write an image to an SD card or a stick, and verify it."),
}


class LazyGroup(click.Group):
    """Import a command's module only when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command; None when there is none of this name."""
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in _COMMANDS.items()])


@click.group(cls=LazyGroup)
def image() -> None:
    """Images for boards: what boards there are, and cards to boot them from."""
