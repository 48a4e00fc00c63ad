"""What was measured of one configuration. The JSON form is documented in ``docs/benchmark.md``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edge_kit.bench.measure.latency import Latency
from edge_kit.bench.measure.score import LabelledSet, Score
from edge_kit.bundle.split import EngineFile

__all__ = ["Configuration", "Layer", "Measurement", "Memory", "Pipeline"]

_T = TypeVar("_T")


@dataclass(frozen=True)
class Configuration:
    """What is measured.

    Attributes:
        file: Path within the bundle.
        engine: ``onnx`` or ``tflite``.
        role: ``end``, or ``full`` for the whole float model.
        precision: Type of the numbers inside, such as ``int8``.
        arch: Architecture that the file is for.
        size_bytes: Of the file.
        threads: Of the engine.
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
    def title(self) -> str:
        """Return it for people, without the threads."""
        whole = ", whole model" if self.role == "full" else ""
        return f"{self.engine} {self.precision}{whole}"

    @property
    def full_title(self) -> str:
        """Return it for people."""
        return f"{self.title}, {self.threads} thread{'s' if self.threads > 1 else ''}"

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Configuration:
        """Read the documented form; errors as `Measurement.from_json`."""
        return cls(
            file=str(data["file"]),
            engine=str(data["engine"]),
            role=str(data["role"]),
            precision=str(data["precision"]),
            arch=str(data["arch"]),
            size_bytes=int(data["size_bytes"]),
            threads=int(data["threads"]),
        )


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
        frames: Frames that went through.
        fps: Frames a second.
        source: ``photos`` (read and decoded meanwhile) or ``synthetic`` (camera size, in memory).
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
        name: Of the node.
        operator: Its kind.
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
        reference: Agreement with the answers of the export on the bundle's reference photos.
        top1: Right answers on photos whose class is known.
        top1_inference: The engine's calls on those photos.
        top1_set: Which photos they are.
        top1_answers: Class index that each of them got, in the order of `LabelledSet.labels`.
        pipeline: None when it was not asked for.
        layers: Slowest first; None where the engine tells nothing, or it was not asked for.
        conditions: The JSON form of `Conditions`, with ``marks``.
        skipped: What was left out here and why, as sentences.
        clock_us: What taking the time added to each call, microseconds; None where not measured.
    """

    configuration: Configuration
    error: str = ""
    runtime: str = ""
    import_ms: float = 0.0
    init_ms: float = 0.0
    first_inference_ms: float = 0.0
    warmup: Latency | None = None
    inference: Latency | None = None
    calls_ms: tuple[float, ...] = ()
    memory: Memory | None = None
    reference: Score | None = None
    top1: Score | None = None
    top1_inference: Latency | None = None
    top1_set: LabelledSet | None = None
    top1_answers: tuple[int, ...] = ()
    pipeline: Pipeline | None = None
    layers: tuple[Layer, ...] | None = None
    conditions: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    clock_us: float | None = None

    @property
    def marks(self) -> tuple[str, ...]:
        """What spoils these figures, as sentences."""
        return tuple(str(m) for m in self.conditions.get("marks", ()))

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        return {
            "configuration": self.configuration.to_json(),
            "error": self.error,
            "runtime": self.runtime,
            "import_ms": round(self.import_ms, 3),
            "init_ms": round(self.init_ms, 3),
            "first_inference_ms": round(self.first_inference_ms, 3),
            "warmup_ms": self.warmup and self.warmup.to_json(),
            "inference_ms": self.inference and self.inference.to_json(),
            "calls_ms": list(self.calls_ms),
            "memory_bytes": self.memory and dict(vars(self.memory)),
            "reference": self.reference and dict(vars(self.reference)),
            "top1": self.top1 and dict(vars(self.top1)),
            "top1_inference_ms": self.top1_inference and self.top1_inference.to_json(),
            "top1_set": self.top1_set and self.top1_set.to_json(),
            "top1_answers": list(self.top1_answers),
            "pipeline": self.pipeline and dict(vars(self.pipeline)),
            "layers": self.layers and [dict(vars(layer)) for layer in self.layers],
            "conditions": dict(self.conditions),
            "skipped": list(self.skipped),
            "clock_us": self.clock_us,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Read the documented form; unknown keys are ignored, those that came later may lack.

        Raises:
            KeyError, TypeError, ValueError: A field is missing or makes no sense.
        """
        layers, conditions = data["layers"], dict(data["conditions"])
        if not isinstance(conditions.get("marks", []), list):
            raise TypeError(f"marks {conditions['marks']!r} are no list")
        spoiled = conditions.get("throttled") or conditions.get("disturbed")
        if spoiled and not conditions.get("marks"):
            raise ValueError("it was throttled or disturbed, and no mark says so")
        labelled = _maybe(data.get("top1_set"), LabelledSet.from_json)
        answers = tuple(int(v) for v in data.get("top1_answers", ()))
        if len(answers) != (0 if labelled is None else len(labelled.labels)):
            raise ValueError("top1_answers and the labels of top1_set are not equally many")
        top1 = _maybe(data["top1"], Score.from_json)
        if labelled is not None and (top1 is None or top1.total != len(answers)):
            raise ValueError("top1 does not count the photos of top1_set")
        if labelled is not None and top1 is not None:
            right = sum(a == b for a, b in zip(answers, labelled.labels, strict=True))
            if right != top1.right:
                raise ValueError(f"top1 counts {top1.right} right answers, and there are {right}")
        return cls(
            configuration=Configuration.from_json(data["configuration"]),
            error=str(data["error"]),
            runtime=str(data["runtime"]),
            import_ms=float(data["import_ms"]),
            init_ms=float(data["init_ms"]),
            first_inference_ms=float(data["first_inference_ms"]),
            warmup=_maybe(data["warmup_ms"], Latency.from_json),
            inference=_maybe(data["inference_ms"], Latency.from_json),
            calls_ms=tuple(float(v) for v in data["calls_ms"]),
            memory=_maybe(
                data["memory_bytes"], lambda d: Memory(int(d["baseline"]), int(d["peak"]))
            ),
            reference=_maybe(data["reference"], Score.from_json),
            top1=top1,
            top1_inference=_maybe(data["top1_inference_ms"], Latency.from_json),
            pipeline=_maybe(data["pipeline"], _pipeline),
            layers=None if layers is None else tuple(map(_layer, layers)),
            top1_set=labelled,
            top1_answers=answers,
            conditions=conditions,
            skipped=tuple(str(v) for v in data.get("skipped", ())),
            clock_us=_maybe(data.get("clock_us"), float),
        )


def _maybe(value: Any, read: Callable[[Any], _T]) -> _T | None:
    return None if value is None else read(value)


def _pipeline(d: Mapping[str, Any]) -> Pipeline:
    stages = {str(k): float(v) for k, v in d["stages_ms"].items()}
    return Pipeline(int(d["frames"]), float(d["fps"]), str(d["source"]), stages)


def _layer(d: Mapping[str, Any]) -> Layer:
    name, operator, output = (str(d[key]) for key in ("name", "operator", "output"))
    return Layer(name, operator, output, float(d["mean_ms"]), float(d["share"]))
