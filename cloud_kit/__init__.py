"""cloud-kit: the workers that finish what devices were unsure of."""

from __future__ import annotations

from cloud_kit.worker.batcher import Batcher
from cloud_kit.worker.models import Models, Tail, open_models
from cloud_kit.worker.validator import Job, Refused, Validator
from cloud_kit.worker.worker import Worker, WorkerSettings

__all__ = [
    "Batcher",
    "Job",
    "Models",
    "Refused",
    "Tail",
    "Validator",
    "Worker",
    "WorkerSettings",
    "open_models",
]
