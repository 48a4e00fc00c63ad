"""``edge-kit image``: a group whose commands are loaded when they are called."""

from __future__ import annotations

import click

from edge_kit.terminal.lazy_group import LazyGroup, entries

__all__ = ["image"]

_COMMANDS = entries(
    "boards.commands",
    {
        "boards": "List the boards and what is known of them.",
        "build": "Build an image for a board from Debian packages.",
        "boot": "Boot an image in QEMU until the device answers on MQTT.",
        "customize": "Put edge-kit into a stock Raspberry Pi OS image.",
        "flash": "Write an image to an SD card or a stick, and verify it.",
    },
)


@click.group(cls=LazyGroup, entries=_COMMANDS)
def image() -> None:
    """Images for boards: what boards there are, and cards to boot them from."""
