"""Finish a batch: features in, one result a job out, in the same order."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from cloud_kit.worker.validator import Job
from edge_kit.errors import EngineError
from edge_kit.exits import normalized_entropy, softmax
from edge_kit.tensors import dequantize
from edge_kit.wire import Refusal, ResultMessage

__all__ = ["classify"]


def classify(jobs: Sequence[Job]) -> list[ResultMessage]:
    """Run jobs of one tail as one batch.

    A batch that the engine rejects is run again one by one, so that a single sample cannot take
    its neighbours along; those that fail alone come back as refusals.
    """
    try:
        return _run(jobs)
    except EngineError:
        if len(jobs) == 1:
            return [_failed(jobs[0])]
        return [classify([job])[0] for job in jobs]


def _run(jobs: Sequence[Job]) -> list[ResultMessage]:
    tail = jobs[0].tail
    batch = np.stack([job.features for job in jobs])
    start = time.perf_counter()
    raw = tail.engine.run({"features": batch})["logits"]
    engine_us = int((time.perf_counter() - start) * 1e6)
    logits = dequantize(raw, tail.engine.outputs["logits"]).reshape(len(jobs), -1)
    finite = np.isfinite(logits).all(axis=1)
    p = softmax(np.where(finite[:, np.newaxis], logits, 0.0))
    entropy = normalized_entropy(p)
    labels = p.argmax(axis=1)
    results = []
    for job, ok, probabilities, eta, label in zip(jobs, finite, p, entropy, labels, strict=True):
        if not ok:
            results.append(_failed(job))
            continue
        results.append(
            ResultMessage(
                model=tail.model,
                sample=job.header.sample,
                label=int(label),
                confidence=float(probabilities[label]),
                entropy=float(eta),
                engine_us=engine_us,
                batch=len(jobs),
                probabilities=tuple(probabilities.tolist()),
            )
        )
    return results


def _failed(job: Job) -> ResultMessage:
    return ResultMessage(job.tail.model, job.header.sample, Refusal.ENGINE)
