"""``edge-kit image boards``."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

import click

from boards.data.board import Board, load_board, load_boards

__all__ = ["CHECK", "boards"]

_WIDTH = 100
# What no emulator proves, owners of a board can; these lines stand in docs/images.md too.
CHECK = (
    "ssh root@HOSTNAME 'cat /proc/device-tree/model; systemctl status edge-kit edge-kit-firstboot "
    "edge-kit-enroll --no-pager'",
    "ssh root@HOSTNAME 'lsblk -o NAME,SIZE,FSTYPE,MOUNTPOINTS; journalctl -b -u edge-kit -n 30 "
    "--no-pager'",
    "ssh root@HOSTNAME 'cd /; PYTHONPATH=/usr/lib/edge-kit/site-packages python3 -m edge_kit.cli "
    "doctor'",
)
_BOOTED = {"never": "never", "looked up": "never", "emulated": "in QEMU", "board": "on the board"}


@click.command(
    epilog="\b\nExamples:\n"
    "  edge-kit image boards\n"
    "  edge-kit image boards pi4\n"
    "  edge-kit image boards --json"
)
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print all that is known as JSON.")
def boards(name: str | None, as_json: bool) -> None:
    """List the boards, or tell all of one: engines, memory, cameras, and what was verified."""
    found = load_boards() if name is None else (load_board(name),)
    if as_json:
        click.echo(json.dumps([b.to_json() for b in found], indent=1))
    elif name is None:
        click.echo("\n".join(_table(found)))
    else:
        click.echo("\n".join(_details(found[0])))


def _table(found: tuple[Board, ...]) -> Iterator[str]:
    rows = [("board", "", "processor", "memory", "booted")]
    for b in found:
        rows.append((b.name, b.title, f"{b.cpu.cores} x {b.cpu.core}", _memory(b),
                     _BOOTED[b.booted]))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield "engines by system:"
    systems = {s.name: s for b in found for s in b.systems if s.engines}
    for system in systems.values():
        yield f"  {system.name:<33} Python {system.python}  {', '.join(system.engines)}"
    for system in {s.name: s for b in found for s in b.systems if s.advice}.values():
        yield from _wrapped(f"note: {system.advice}.", "")
    yield from _wrapped(
        "note: booted in QEMU proves kernel, first boot and service. No emulator proves the "
        "firmware stage, real cameras or Wi-Fi. Owners of a board: edge-kit image boards NAME ends "
        "with three lines to run.",
        "",
    )


def _details(board: Board) -> Iterator[str]:
    yield f"{board.name}: {', '.join((board.title, *board.also))}"
    clock = f" at {board.cpu.mhz:,} MHz" if board.cpu.mhz else ""
    dot = "with" if board.cpu.dotprod else "without"
    rows = (
        ("processor", f"{board.cpu.soc}, {board.cpu.cores} x {board.cpu.core}{clock}, "
                      f"{dot} int8 dot product instructions"),
        ("memory", f"{_memory(board)}. {board.memory.note}"),
        ("threads", f"{board.threads} by default"),
        ("firmware", board.boot.firmware),
        ("device tree", ", ".join(board.boot.device_trees) or "none needed"),
        ("QEMU", board.boot.qemu or "has no such machine"),
        ("camera", f"{board.camera.connector}. {board.camera.note}"),
    )  # fmt: skip
    for label, text in rows:
        yield from _wrapped(text, f"  {label:<12}")
    for system in board.systems:
        engines = ", ".join(system.engines) or "no engine"
        yield f"{system.name} (Python {system.python}): {engines}"
        yield from _wrapped(system.note, "  ")
        if system.advice and system.engines:
            yield from _wrapped(f"{system.advice}.", "  ")
    for claim in board.verified:
        yield from _wrapped(f"{claim.level}. {claim.how}", f"verified, {claim.what}: ")
    if board.booted != "board" and board.boot.qemu != "virt":
        yield "If you have one, run these three lines once it has booted, and send what they print:"
        yield from (f"  {line}" for line in CHECK)


def _memory(board: Board) -> str:
    return " / ".join(f"{m / 1024:g} GiB" if m >= 1024 else f"{m} MiB" for m in board.memory.mib)


def _wrapped(text: str, lead: str) -> list[str]:
    later = " " * (len(lead) if len(lead) < 20 else 2)
    return textwrap.wrap(
        text, _WIDTH, initial_indent=lead, subsequent_indent=later, break_on_hyphens=False
    )
