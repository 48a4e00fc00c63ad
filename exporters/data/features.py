"""What the frozen trunk makes of the training photos, computed once and kept on disk.

Light to import: worker processes load this file, numpy, Pillow and onnxruntime, never torch.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.engines.onnx import open_session, session_options
from edge_kit.errors import ExportError
from edge_kit.pixels.preprocess import Preprocessor
from edge_kit.sources.photo import read_photo
from exporters.data.augment import augment
from exporters.data.photos import open_reduced
from exporters.progress import Tick, ignore

__all__ = ["FeatureTask", "compute_features"]

CHUNK = 128  # photos a job; also what a crash loses per process at most
BATCH = 16


@dataclass(frozen=True)
class FeatureTask:
    """Which features to compute, from what, into where.

    Attributes:
        trunk: ONNX file: float ``image`` (N, 3, h, w), pixels 0 to 255, to one output.
        photos: Files, in the order of the rows.
        rule: Preprocessing of the plain view; its size is every view's.
        shape: (C, h, w) of the trunk's output.
        folder: Holds ``view-00.npy`` (the plain view), ``view-01.npy``, ... and their progress.
        views: Augmented views besides the plain one.
        seed: Fixes every view of every photo, however the work is divided.
    """

    trunk: Path
    photos: tuple[Path, ...]
    rule: Preprocessing
    shape: tuple[int, int, int]
    folder: Path
    views: int
    seed: int

    def features(self, view: int) -> Path:
        """Return the file of one view, (N, C, h, w) float16."""
        return self.folder / f"view-{view:02d}.npy"

    def progress(self, view: int) -> Path:
        """Return the file that says which rows of a view are done, (N,) uint8."""
        return self.folder / f"view-{view:02d}.done.npy"


def compute_features(
    task: FeatureTask,
    *,
    processes: int = 1,
    tick: Tick = ignore,
) -> tuple[NDArray[np.float16], ...]:
    """Compute what is missing and return all views, the plain one first, as memory maps.

    Args:
        task: See `FeatureTask`. A folder with a part of the rows is completed.
        processes: Worker processes; 1 works in this one.
        tick: Told rows done and rows in total.

    Raises:
        SourceError: A photo became unreadable.
        ExportError: A worker process died.
        OSError: The disk is full.
    """
    count = len(task.photos)
    for view in range(task.views + 1):
        _allocate(task, view)
    jobs = list(_missing(task))
    total = (task.views + 1) * count
    done = total - sum(len(rows) for _, rows in jobs)
    tick(done, total)
    for finished in _run(task, jobs, processes):
        done += finished
        tick(done, total)
    return tuple(np.load(task.features(v), mmap_mode="r") for v in range(task.views + 1))


def _allocate(task: FeatureTask, view: int) -> None:
    count = len(task.photos)
    if task.features(view).exists() and task.progress(view).exists():
        return
    task.folder.mkdir(parents=True, exist_ok=True)
    _zeros(task.features(view), np.float16, (count, *task.shape))
    part = task.progress(view).with_suffix(".part")
    _zeros(part, np.uint8, (count,))
    part.replace(task.progress(view))


def _zeros(path: Path, dtype: type[np.generic], shape: tuple[int, ...]) -> None:
    """Make an array file of zeros without holding it in memory.

    Its blocks are taken at once: on a full disk a write to mapped memory would kill the process.
    """
    made = np.lib.format.open_memmap(path, "w+", dtype, shape)  # type: ignore[no-untyped-call]
    made.flush()
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _missing(task: FeatureTask) -> Iterator[tuple[int, list[int]]]:
    for view in range(task.views + 1):
        rows = np.flatnonzero(np.load(task.progress(view)) == 0).tolist()
        for start in range(0, len(rows), CHUNK):
            yield view, rows[start : start + CHUNK]


def _run(task: FeatureTask, jobs: Sequence[tuple[int, list[int]]], processes: int) -> Iterator[int]:
    if processes <= 1 or len(jobs) <= 1:
        _start(task)
        yield from map(_work, jobs)
        return
    # Forking a process that holds torch's and onnxruntime's threads can hang; spawning cannot.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(jobs)), context, _start, (task,))
    try:
        for future in as_completed([pool.submit(_work, job) for job in jobs]):
            yield future.result()
    except BrokenProcessPool:
        raise ExportError(
            "a process that computes features died, perhaps for lack of memory",
            "run it again with fewer --processes; finished rows are kept",
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


class _Worker:
    """One process's task and its onnxruntime session."""

    def __init__(self, task: FeatureTask) -> None:
        self.task = task
        self.preprocessor = Preprocessor(task.rule)
        self.session = open_session(task.trunk, session_options(threads=1))

    def __call__(self, view: int, rows: list[int]) -> int:
        task = self.task
        out = np.load(task.features(view), mmap_mode="r+")
        done = np.load(task.progress(view), mmap_mode="r+")
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            pixels = np.stack([self._pixels(view, row) for row in part])
            image = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2), dtype=np.float32)
            out[part] = self.session.run(None, {"image": image})[0].astype(np.float16)
        out.flush()
        done[rows] = 1  # only after the features are on disk
        done.flush()
        return len(rows)

    def _pixels(self, view: int, row: int) -> NDArray[np.uint8]:
        task, rule = self.task, self.task.rule
        if view == 0:
            return self.preprocessor(read_photo(task.photos[row]))
        photo = open_reduced(task.photos[row], math.ceil(1.5 * max(rule.width, rule.height)))
        rng = random.Random(f"{task.seed}/{view}/{row}")
        return augment(photo, rule.width, rule.height, rng)


_worker: Any = None  # of this process


def _start(task: FeatureTask) -> None:
    global _worker
    _worker = _Worker(task)


def _work(job: tuple[int, list[int]]) -> int:
    return int(_worker(*job))
