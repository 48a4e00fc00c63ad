"""Run every check that applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from edge_kit.device.config import Config
from edge_kit.doctor.broker import check_broker, check_certificate
from edge_kit.doctor.check import Check
from edge_kit.doctor.engines import check_bundle, check_engines
from edge_kit.doctor.host import check_board, check_cameras, check_clock, check_disk
from edge_kit.host.board import read_board
from edge_kit.host.clock import ClockWait
from edge_kit.link.address import BrokerAddress
from edge_kit.link.link import Link, Subscription
from edge_kit.wire import Topics

__all__ = ["examine"]


def examine(
    config: Config,
    make_link: Callable[[BrokerAddress, str, Sequence[Subscription]], Link],
    clock: ClockWait | None = None,
) -> Iterator[Check]:
    """Run every check that applies to what `edge-kit run` is told, yielding each as it comes.

    Args:
        config: A bundle, a certificate and a broker are looked at where there are any.
        make_link: Makes the link of a client id with its subscriptions.
        clock: A broker with certificates is left alone while this wait is not over.

    Raises:
        ConfigError: The broker's address or password cannot be used.
    """
    broker = config.address
    yield check_board(read_board())
    yield from check_engines()
    if config.bundle is not None:
        yield from check_bundle(config.bundle, config.split)
    yield from check_cameras()
    yield check_clock()
    yield check_disk(config.spool)
    if config.tls_cert is not None:
        yield check_certificate(config.tls_cert)
    if broker is not None:
        if clock is not None and broker.tls and (sentence := _clock_wait(clock)):
            yield Check("broker", None, sentence, clock.hint())
        else:
            yield check_broker(broker, make_link, Topics(config.device_id))


def _clock_wait(clock: ClockWait) -> str:
    sentence = clock.look()
    return "" if clock.over else sentence
