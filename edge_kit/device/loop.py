"""The device: source → preprocess → engine → exit rule → result, or spool and cloud.

The loop runs on the thread of its caller. It never waits for the network: low-confidence samples
are handed to a `Courier`, which owns spool and link on a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edge_kit.delivery.courier import Courier
from edge_kit.delivery.outbox import Sample
from edge_kit.delivery.results import Result
from edge_kit.device.output import Sink
from edge_kit.engines.end import EndOutput
from edge_kit.errors import EdgeKitError
from edge_kit.exits import Decision, ExitRule
from edge_kit.sources.source import Frame, Source
from edge_kit.telemetry.counters import DeviceCounters
from edge_kit.telemetry.stages import Stages
from edge_kit.tensors import TensorSpec
from edge_kit.wire import FeatureHeader

__all__ = ["Device", "Model", "Preprocess"]


class Preprocess(Protocol):
    """Turn a frame of any size into the model's pixels."""

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return uint8 (height, width, 3), RGB."""


class Model(Protocol):
    """An end model; see `edge_kit.engines.end.EndModel`."""

    feature_spec: TensorSpec

    def infer(self, pixels: NDArray[np.uint8]) -> EndOutput:
        """Return features and logits of one frame."""


class Device:
    """One run of the pipeline.

    Args:
        source: Where frames come from.
        preprocess: To the model's size.
        model: The end model.
        rule: Which frames the device answers itself.
        classes: Class names.
        wire_id: First 8 bytes of the bundle's model hash.
        cut: Index of the end model's cut.
        sink: Where results go.
        flows: Called after each frame; systemd's watchdog is fed so.

    Attributes:
        stages: Durations.
    """

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess,
        model: Model,
        rule: ExitRule,
        *,
        classes: Sequence[str],
        wire_id: bytes,
        cut: int,
        sink: Sink,
        flows: Callable[[], None] = lambda: None,
    ) -> None:
        self.stages = Stages()
        self._source = source
        self._preprocess = preprocess
        self._model = model
        self._rule = rule
        self._classes = classes
        self._wire_id = wire_id
        self._cut = cut
        self._sink = sink
        self._flows = flows
        self._counters = DeviceCounters()
        self._stopping = threading.Event()

    @property
    def counters(self) -> DeviceCounters:
        """Of this run."""
        self._counters.dropped = self._source.dropped
        self._counters.skipped = self._source.skipped
        return self._counters

    def run(self, courier: Courier | None = None, limit: int | None = None) -> None:
        """Classify frames until the source ends, `stop` is called, or `limit` frames are done.

        Args:
            courier: Takes low-confidence samples; without one their answers are kept.
            limit: Frames; None for no limit.

        Raises:
            EdgeKitError: Of the source, the engine, the courier; or the broker refused us before
                it ever accepted us, which is a mistake in the configuration.
        """
        for frame in self._source.frames():
            with self.stages.time("preprocess"):
                pixels = self._preprocess(frame.pixels)
            with self.stages.time("engine"):
                output = self._model.infer(pixels)
            with self.stages.time("decide"):
                decision = self._rule.decide(output.logits)
                result = self._describe(frame, decision)
            if courier is None or decision.exits:
                with self.stages.time("emit"):
                    self._emit(result)
            else:
                with self.stages.time("hand over"):
                    courier.submit(self._sample(frame, output, decision, result))
            self._counters.frames += 1
            self._flows()
            if self._finished(courier, limit):
                return

    def stop(self) -> None:
        """End `run` after the current frame. Call it from any thread, but no signal handler."""
        self._stopping.set()
        self._source.close()

    @property
    def stopped(self) -> bool:
        """`stop` was called, or the reader of the results went away."""
        return self._stopping.is_set() or self._sink.broken

    def _finished(self, courier: Courier | None, limit: int | None) -> bool:
        if courier is not None:
            _check(courier)
        return self.stopped or self._counters.frames == limit

    def _emit(self, result: Result) -> None:
        if result.status == "final":
            self._counters.device += 1
        else:
            self._counters.standing += 1
            result = replace(result, reason="no broker is configured")
        self._sink.result(result)

    def _describe(self, frame: Frame, decision: Decision) -> Result:
        return Result(
            sample=None,
            source=frame.name,
            index=frame.index,
            captured_at=frame.captured_at,
            label=decision.label,
            class_name=self._classes[decision.label],
            confidence=decision.confidence,
            entropy=decision.entropy,
            status="final" if decision.exits else "standing",
            latency_ms=(time.monotonic() - frame.ticks) * 1e3,
        )

    def _sample(
        self, frame: Frame, output: EndOutput, decision: Decision, result: Result
    ) -> Sample:
        header = FeatureHeader(
            model=self._wire_id,
            cut=self._cut,
            spec=self._model.feature_spec,
            sample=bytes(8),
            captured_at=int(frame.captured_at * 1e6),
            label=decision.label,
            entropy=decision.entropy,
        )
        # A copy: the engine may write over its output before the courier has packed it.
        return Sample(header, output.features.copy(), result, frame.ticks)


def _check(courier: Courier) -> None:
    error: EdgeKitError | None = courier.error
    if error is None and not courier.ever_connected and not courier.patient:
        error = courier.fatal
    if error is not None:
        raise error
