"""cloud-kit: the workers that finish what devices were unsure of."""

from __future__ import annotations

from cloud_kit.worker.admission import Admission, Job, Refused
from cloud_kit.worker.batcher import Batcher
from cloud_kit.worker.models import Models, Tail, open_models
from cloud_kit.worker.worker import Worker, WorkerSettings

__all__ = [
    "Admission",
    "Batcher",
    "Job",
    "Models",
    "Refused",
    "Tail",
    "Worker",
    "WorkerSettings",
    "open_models",
]
