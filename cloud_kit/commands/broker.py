"""``cloud-kit broker``."""

from __future__ import annotations

import click

from cloud_kit.commands.output import event_printer, log_to_stderr
from edge_kit.errors import LinkError
from edge_kit.host.broker import broker_process
from edge_kit.host.signals import stop_requests

__all__ = ["broker"]


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=1883, show_default=True,
              help="TCP port on 127.0.0.1; 0 takes a free one.")  # fmt: skip
@click.option("--kind", type=click.Choice(["auto", "mosquitto", "iotcore"]), default="auto",
              show_default=True, help="Which broker to run.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Write JSON lines.")
def broker(port: int, kind: str, as_json: bool) -> None:
    """Run a broker on this machine's loopback, for demonstrations and development.

    It has no passwords and keeps nothing. Deployments: see docs/cloud.md.
    """
    log_to_stderr(verbose=False)
    say = event_printer(as_json)
    with stop_requests() as stop, broker_process(port, kind) as running:
        say({"event": "ready", "url": running.url, "port": running.port, "kind": running.kind,
             "pid": running.process.pid})  # fmt: skip
        while not stop.wait(0.5):
            if running.process.poll() is not None:
                raise LinkError(f"{running.kind} ended by itself", "start it again")
    say({"event": "stopped"})
