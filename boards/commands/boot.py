"""``edge-kit image boot``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from boards.emulator.boot import Guest, start
from boards.emulator.listener import DeviceListener, broker, broker_port
from boards.emulator.machine import MACHINES
from edge_kit.errors import ImageError
from edge_kit.host.signals import signals_interrupt
from edge_kit.terminal.command_line import write_message

__all__ = ["boot"]

_LOOK_EVERY_S = 1.0


@click.command(
    epilog="\b\nExample:\n"
    "  edge-kit image boot edge.img.xz --machine raspi3b\n"
    "  edge-kit image boot edge.img.xz --ssh 2222 --stay   # then: ssh -p 2222 root@127.0.0.1\n"
    '\b\nThe image\'s broker has to be this machine: broker = "mqtt://10.0.2.2:1883" in its\n'
    "configuration. What listens there is used; otherwise a broker is started for that time."
)
@click.argument("image", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--machine", type=click.Choice(sorted(MACHINES)), default="virt", show_default=True)
@click.option(
    "--answers",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Wait also until a worker at this broker answered N samples.",
)
@click.option("--timeout", type=click.IntRange(1), default=900, show_default=True, metavar="S")
@click.option("--log", type=click.Path(path_type=Path), help="Keep the console's output here.")
@click.option("--journal", is_flag=True, help="Let the device's journal go to the console too.")
@click.option(
    "--ssh",
    type=click.IntRange(1, 65535),
    metavar="PORT",
    help="Let this port of 127.0.0.1 lead to the device's SSH.",
)
@click.option("--stay", is_flag=True, help="Keep it running until Ctrl-C.")
@signals_interrupt()
def boot(
    image: Path,
    machine: str,
    answers: int,
    timeout: int,
    log: Path | None,
    journal: bool,
    ssh: int | None,
    stay: bool,
) -> None:
    """Boot an image in QEMU and wait until its device answers on MQTT.

    The image stays as it is: the emulator writes to a copy. Its kernel command line is the image's
    own, but for the console.
    """
    began = time.monotonic()
    with start(image, machine, write_message, log=log, ssh=ssh, journal=journal) as guest:
        port = broker_port(guest.settings)
        with broker(port) as started:
            write_message(f"{'started a' if started else 'using the'} broker on port {port}")
            listener = DeviceListener(port)
            try:
                _wait(guest, listener, answers, began + timeout)
                click.echo(_sentence(listener, time.monotonic() - began))
                if stay:
                    _stay(guest, ssh)
            finally:
                listener.close()


def _sentence(listener: DeviceListener, seconds: float) -> str:
    status = listener.status
    return (
        f"{listener.device} is online after {seconds:.0f} s: {status.get('model')} on "
        f"{status.get('engine')}, {listener.answers} answers"
        + (f", {listener.refusals} refused" if listener.refusals else "")
    )


def _stay(guest: Guest, ssh: int | None) -> None:
    """Keep the guest, through restarts, until the user has seen enough."""
    login = f"log in with: ssh -p {ssh} root@127.0.0.1; " if ssh else ""
    write_message(f"{login}Ctrl-C ends it")
    try:
        while True:
            guest.check()
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        write_message("ended; the image is as it was")


def _wait(guest: Guest, listener: DeviceListener, answers: int, deadline: float) -> None:
    while not listener.device or listener.answers < answers:
        guest.check()
        if time.monotonic() > deadline:
            last = " / ".join(guest.console().splitlines()[-4:])
            who = listener.device or "no device"
            raise ImageError(
                f"not in time: {who} is online, {listener.answers} answers; the console ends "
                f"with: {last}",
                "give it more --timeout; --log keeps the whole console",
            )
        listener.changed.wait(_LOOK_EVERY_S)
        listener.changed.clear()
