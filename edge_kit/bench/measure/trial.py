"""Start the child that measures one configuration, and monitor the board while it runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from edge_kit.bench.conditions.conditions import BoardMonitor
from edge_kit.bench.measure.measurement import Configuration, Measurement
from edge_kit.bench.measure.task import Effort, Task
from edge_kit.bundle import Bundle
from edge_kit.bundle.split import EngineFile
from edge_kit.engines.load import PACKAGES, missing_extra
from edge_kit.errors import SourceError
from edge_kit.host.child_process import ChildError, ask_child, module_command
from edge_kit.records import from_json, to_json

__all__ = ["measure_in_child"]


def measure_in_child(
    bundle: Bundle,
    file: EngineFile,
    threads: int,
    effort: Effort,
    *,
    command: Callable[[], Sequence[str]] | None = None,
    monitor: Callable[[], BoardMonitor] = BoardMonitor,
) -> Measurement:
    """Measure a model file; what goes wrong with its engine becomes part of the answer.

    Tests give another `command` line of the child, and another `monitor` of the board.

    Raises:
        SourceError: The photos cannot be used, whatever the configuration.
    """
    configuration = Configuration.of(file, threads)
    if missing := missing_extra(file.engine):
        return Measurement(configuration, error=str(missing))
    argv = command() if command else _command(bundle, file, threads, effort)
    board = monitor()
    with board:
        found = _run(argv, configuration, effort.timeout_s(bundle))
    return replace(found, conditions=board.conditions)


def _command(bundle: Bundle, file: EngineFile, threads: int, effort: Effort) -> list[str]:
    task = Task(bundle.root, bundle.split.name, file.path, threads, effort)
    return module_command("edge_kit.bench.measure.child", json.dumps(to_json(task)))


def _run(argv: Sequence[str], configuration: Configuration, timeout_s: float) -> Measurement:
    package = PACKAGES.get(configuration.engine, configuration.engine)
    try:
        return from_json(Measurement, ask_child(argv, package, timeout_s))
    except ChildError as error:
        if error.exit_code == SourceError.exit_code:
            raise SourceError(str(error)) from None
        return Measurement(configuration, error=str(error))
