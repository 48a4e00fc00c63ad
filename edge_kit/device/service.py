"""Build a device from its configuration, run it, and take it down in the right order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from edge_kit import __version__
from edge_kit.bundle import Bundle
from edge_kit.bundle.manifest import Manifest
from edge_kit.delivery.courier import Courier
from edge_kit.delivery.outbox import Outbox
from edge_kit.delivery.spool import Spool
from edge_kit.delivery.window import Pace
from edge_kit.device.config import Config
from edge_kit.device.loop import Device
from edge_kit.device.output import Sink
from edge_kit.engines.end import EndModel
from edge_kit.engines.select import open_end_model
from edge_kit.errors import EdgeKitError, UsageError
from edge_kit.exits import ExitRule, threshold_for_offload
from edge_kit.host.clock import ClockWait
from edge_kit.host.systemd import Notifier
from edge_kit.link.address import BrokerAddress
from edge_kit.link.open import open_device_link
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.open import open_source
from edge_kit.sources.source import Source
from edge_kit.telemetry.certificate import read_certificate
from edge_kit.telemetry.counters import Backlog, DeliveryCounters, to_json
from edge_kit.telemetry.presence import Presence
from edge_kit.wire import Topics

__all__ = ["Service"]

LINGER_STEP_S = 0.5


class Service:
    """A device, ready to run once.

    Args:
        config: What to do.
        sink: Where results go.
        report: Told sentences for people.
        notifier: Tells systemd that frames flow; by default nobody is told.
        clock: What ``wait_for_clock`` waits for; injected by tests.

    Attributes:
        rule: The exit rule in force.
        engine: Name of the engine.
        split: Name of the split.
        tuning: What ``tuning.json`` says of it, for people.

    Raises:
        EdgeKitError: Bundle, engine, source, spool or configuration is unfit.
    """

    def __init__(
        self,
        config: Config,
        sink: Sink,
        report: Callable[[str], None],
        notifier: Notifier | None = None,
        clock: ClockWait | None = None,
    ) -> None:
        if config.bundle is None:
            raise UsageError("no bundle is given", "name one with --bundle")
        self._config = config
        self._sink = sink
        self._report = report
        self._notifier = notifier or Notifier({})
        bundle = Bundle.open(config.bundle, split=config.split)
        manifest = bundle.manifest
        self.rule = choose_rule(bundle, config.threshold, config.target_offload)
        self.split = bundle.split.name
        self.tuning = bundle.tuning.sentence() if bundle.is_tuned else "none for this split"
        self._source: Source = open_source(
            camera=config.camera, source=config.source, fps=config.fps, live=config.live
        )
        self._model: EndModel = open_end_model(bundle, config.engine, config.threads)
        self.engine = self._model.engine.name
        self._device = Device(
            self._source,
            Preprocessor(manifest.preprocessing),
            self._model,
            self.rule,
            classes=manifest.classes,
            wire_id=manifest.wire_id,
            cut=bundle.index,
            sink=sink,
            flows=self._notifier.frame,
        )
        self._courier: Courier | None = None
        address = config.address
        if address is not None:
            waits = config.wait_for_clock and address.tls
            clock = (clock or ClockWait()) if waits else None
            self._courier = self._open_courier(manifest, address, clock)

    def run(self) -> dict[str, Any]:
        """Classify until the end, wait for results, and return the counters.

        Raises:
            EdgeKitError: What ended the run early; or, after all frames are done and the summary
                was written, that the cloud or the spool is out of reach for good.
        """
        courier = self._courier
        try:
            if courier is not None:
                courier.start()
            self._device.run(courier, self._config.limit)
            self._notifier.stopping()
            if courier is not None:
                self._linger(courier)
        finally:
            self._source.close()
            if courier is not None:
                courier.stop(to_json(self._device.counters))
            self._model.close()
        summary = self._summary()
        self._sink.summary(summary)
        if error := _lasting_error(courier):
            raise error
        return summary

    def stop(self) -> None:
        """End `run` soon. Call it from any thread, but no signal handler."""
        self._device.stop()

    def _linger(self, courier: Courier) -> None:
        """Wait until every sample has its outcome, bounded."""
        deadline = time.monotonic() + self._config.linger
        while not self._device.stopped and courier.fatal is None and courier.error is None:
            left = deadline - time.monotonic()
            if left <= 0 or courier.wait_drained(min(left, LINGER_STEP_S)):
                return

    def _summary(self) -> dict[str, Any]:
        courier, device = self._courier, self._device.counters
        stages = self._device.stages.medians_ms()
        summary: dict[str, Any] = {"run": to_json(device, DeliveryCounters(), Backlog())}
        if courier is not None:
            run = to_json(device, courier.counters, courier.backlog())
            summary = {"run": run, "total": courier.total()}
            if sent := courier.counters.offloaded:
                stages["spool"] = round(courier.spool_seconds * 1e3 / sent, 4)
        return summary | {
            "stages_ms": stages,
            "engine": self.engine,
            "threshold": self.rule.threshold,
        }

    def _open_courier(
        self, manifest: Manifest, address: BrokerAddress, clock: ClockWait | None
    ) -> Courier:
        config = self._config
        topics = Topics(config.device_id)
        about = {
            "version": __version__,
            "model": manifest.name,
            "model_hash": manifest.model_hash[:16],
            "engine": self.engine,
        }
        presence = Presence(topics, about)
        link = open_device_link(address, topics, presence.subscription, presence.will)
        spool = Spool(
            config.spool,
            max_bytes=int(config.spool_mb * (1 << 20)),
            max_age_s=config.spool_hours * 3600,
            sync=config.spool_sync,
            dated=clock is None,
        )
        if len(spool):
            self._report(f"{len(spool)} samples of earlier runs wait in the spool and go first")
        outbox = Outbox(
            spool,
            link,
            topics,
            classes=manifest.classes,
            model=manifest.wire_id,
            emit=self._sink.result,
            pace=Pace(config.window, config.resend_s, max(Pace.cap_s, config.resend_s)),
        )

        def state() -> dict[str, Any]:
            counters = to_json(self._device.counters, outbox.counters, outbox.backlog())
            if clock is not None:
                counters["clock_wait_s"] = int(clock.waited_s)
            certificate = None if config.tls_cert is None else read_certificate(config.tls_cert)
            if certificate is None:
                return {"counters": counters}
            problems = [certificate.problem] if certificate.problem else []
            told = certificate.to_json()
            return {"counters": counters, "certificate": told, "problems": problems}

        return Courier(
            outbox,
            spool,
            link,
            presence,
            state=state,
            report=self._report,
            clock=clock,
            patient=config.keep_trying,
        )


def choose_rule(bundle: Bundle, threshold: float | None, target_offload: float | None) -> ExitRule:
    """Return the rule of the bundle's split as tuned, or with the threshold that is asked for.

    Raises:
        UsageError: Both are given, or the bundle has no curve to pick from.
    """
    if threshold is not None and target_offload is not None:
        raise UsageError("give --threshold or --target-offload, not both")
    if target_offload is not None:
        try:
            threshold = threshold_for_offload(bundle.curve, target_offload)
        except ValueError as error:
            raise UsageError(
                f"--target-offload cannot be met: {error}", "use --threshold"
            ) from None
    if threshold is None:
        return bundle.rule
    return ExitRule(threshold, bundle.rule.temperature)


def _lasting_error(courier: Courier | None) -> EdgeKitError | None:
    if courier is None:
        return None
    return courier.error or courier.fatal or courier.trouble
