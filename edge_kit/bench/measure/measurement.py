"""What was measured of one configuration. The JSON form is documented in ``docs/benchmark.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edge_kit.bench.conditions.conditions import Conditions
from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.score import LabelledSet, Score
from edge_kit.bundle.split import EngineFile

__all__ = ["Configuration", "Layer", "Measurement", "Memory", "Pipeline"]


@dataclass(frozen=True)
class Configuration:
    """What is measured.

    Attributes:
        file: Path within the bundle.
        role: ``end``, or ``full`` for the whole float model.
        precision: Type of the numbers inside, such as ``int8``.
        arch: Architecture that the file is for.
    """

    file: str
    engine: str
    role: str
    precision: str
    arch: str
    size_bytes: int
    threads: int

    @classmethod
    def of(cls, file: EngineFile, threads: int) -> Configuration:
        """Describe a model file of a bundle."""
        # An end model's features leave as they are computed; a whole model states its input.
        specs = file.outputs if file.role == "end" else file.inputs
        kinds = [s.dtype for s in specs if s.layout != "NC"]
        precision = kinds[0] if kinds else "unknown"
        return cls(file.path, file.engine, file.role, precision, file.arch, file.size, threads)

    @property
    def work(self) -> dict[str, str]:
        """Return what a comparison holds equal besides model and threads, as JSON."""
        return {"role": self.role, "engine": self.engine, "precision": self.precision}

    @property
    def title(self) -> str:
        """Return it for people, without the threads."""
        whole = ", whole model" if self.role == "full" else ""
        return f"{self.engine} {self.precision}{whole}"

    @property
    def full_title(self) -> str:
        """Return it for people."""
        return f"{self.title}, {self.threads} thread{'s' if self.threads > 1 else ''}"


@dataclass(frozen=True)
class Memory:
    """Resident memory of the process that ran one configuration, bytes.

    Attributes:
        baseline: Python, numpy and edge-kit, before the engine was imported.
        peak: The most, with engine and model (VmHWM); photos are decoded later.
    """

    baseline: int
    peak: int


@dataclass(frozen=True)
class Pipeline:
    """The device's own loop, without a broker, as fast as it goes.

    Attributes:
        source: ``photos`` (read and decoded) or ``synthetic`` (of camera size, in memory).
        stages_ms: Median of each stage, milliseconds.
    """

    frames: int
    fps: float
    source: str
    stages_ms: Mapping[str, float]


@dataclass(frozen=True)
class Layer:
    """One operator of the model, as the engine ran it.

    Attributes:
        output: Type and shape of what it gives, such as ``uint8 1 x 16 x 112 x 112``.
        mean_ms: Mean time of a call.
        share: Of all operators' time, 0 to 1.
    """

    name: str
    operator: str
    output: str
    mean_ms: float
    share: float


@dataclass(frozen=True)
class Measurement:
    """The figures of one configuration, or why there are none.

    Attributes:
        configuration: What was measured.
        error: Why it could not be; empty when it could.
        runtime: Package and version of the engine.
        import_ms: Importing the engine's package.
        init_ms: Loading the model, as `benchmark_model` calls it.
        first_inference_ms: The first call after that.
        warmup: Further calls that do not count; None without any.
        inference: The calls that count.
        calls_ms: Each of these, in order.
        memory: None where the system does not tell.
        self_test: Agreement with the answers of the export on the photos of the self-test.
        top1: Right answers on photos whose class is known.
        top1_inference: The engine's calls on those photos.
        top1_set: Which photos they are.
        top1_answers: Class index that each of them got, in the order of `LabelledSet.labels`.
        pipeline: None when it was not asked for.
        layers: Slowest first; None where the engine tells nothing, or it was not asked for.
        conditions: What the board went through; in JSON an empty object when nothing was started.
        skipped: What was left out here and why, as sentences.
        clock_us: What taking the time added to each call, microseconds; None where not measured.
    """

    configuration: Configuration
    error: str = ""
    runtime: str = ""
    import_ms: float = 0.0
    init_ms: float = 0.0
    first_inference_ms: float = 0.0
    warmup: Latency | None = field(default=None, metadata={"key": "warmup_ms"})
    inference: Latency | None = field(default=None, metadata={"key": "inference_ms"})
    calls_ms: tuple[float, ...] = ()
    memory: Memory | None = field(default=None, metadata={"key": "memory_bytes"})
    self_test: Score | None = field(default=None, metadata={"key": "reference"})
    top1: Score | None = None
    top1_inference: Latency | None = field(default=None, metadata={"key": "top1_inference_ms"})
    top1_set: LabelledSet | None = None
    top1_answers: tuple[int, ...] = ()
    pipeline: Pipeline | None = None
    layers: tuple[Layer, ...] | None = None
    conditions: Conditions = field(default_factory=Conditions)
    skipped: tuple[str, ...] = ()
    clock_us: float | None = None

    def __post_init__(self) -> None:
        """Refuse answers to other photos than those named; a file may have been edited."""
        asked = len(self.top1_set.labels) if self.top1_set else 0
        if len(self.top1_answers) != asked:
            raise ValueError(f"{len(self.top1_answers)} top1_answers to {asked} labelled photos")
