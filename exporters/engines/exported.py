"""One exported model file: what the manifest says of it, and a way to run it for parity checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle import sha256_file
from edge_kit.bundle.split import EngineFile
from edge_kit.tensors import TensorSpec, dequantize, to_layout
from exporters.quiet import quiet

__all__ = ["Exported", "describe", "pixels_for"]

FOLDERS = {"end": "end", "tail": "cloud", "full": "cloud"}
BATCH = 32


@dataclass(frozen=True)
class Exported:
    """A model file as an exporter left it; call it to run it.

    Attributes:
        source: Where the file lies now.
        entry: Its line in the manifest; ``entry.path`` is its place inside the bundle.
    """

    source: Path
    entry: EngineFile

    def __call__(self, batch: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """Run any number of samples.

        Args:
            batch: uint8 pixels (N, height, width, 3) for ``end`` and ``full``; raw features
                (N, C, h, w) as the end model gave them for ``tail``.

        Returns:
            ``logits`` as float32 (N, classes), dequantized when the file gives integers, and for
            an end model ``features`` as the file gives them (raw int8), in NCHW order.
        """
        (spec,) = self.entry.inputs
        if spec.name == "image":
            batch = pixels_for(batch, spec)
        else:
            batch = to_layout(batch.astype(spec.dtype, copy=False), "NCHW", spec.layout)
        raw = self._run(batch)
        out: dict[str, NDArray[Any]] = {}
        for given in self.entry.outputs:
            values = raw[given.name]
            if given.name == "features":
                out["features"] = to_layout(values, given.layout, "NCHW")
            else:
                out[given.name] = dequantize(values, given)
        return out

    def with_figures(self, **figures: Any) -> Exported:
        """Return the same file with more measured figures in its manifest line."""
        merged = {**self.entry.figures, **figures}
        return replace(self, entry=replace(self.entry, figures=merged))

    @cached_property
    def _run(self) -> Callable[[NDArray[Any]], dict[str, NDArray[Any]]]:
        if self.entry.engine == "onnx":
            return _OnnxRunner(self.source).run
        return _TfliteRunner(self.source).run


def describe(
    source: Path,
    *,
    role: str,
    engine: str,
    arch: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    requires: Mapping[str, Any],
) -> Exported:
    """Hash a written model file and describe it for the manifest."""
    entry = EngineFile(
        path=f"{FOLDERS[role]}/{source.name}",
        role=role,
        engine=engine,
        arch=arch,
        sha256=sha256_file(source),
        size=source.stat().st_size,
        inputs=inputs,
        outputs=outputs,
        requires=requires,
    )
    return Exported(source, entry)


def pixels_for(pixels: NDArray[np.uint8], spec: TensorSpec) -> NDArray[Any]:
    """Turn uint8 pixels (N, h, w, 3) into what an ``image`` input of `spec` takes.

    uint8 inputs take the pixels, int8 inputs pixel - 128, float inputs the pixels as numbers.
    """
    pixels = to_layout(pixels, "NHWC", spec.layout)
    if spec.dtype == "int8":
        return (pixels ^ np.uint8(0x80)).view(np.int8)
    return pixels.astype(spec.dtype, copy=False)


class _OnnxRunner:
    """onnxruntime as a parity check wants it, unlike a board: all cores, every architecture."""

    def __init__(self, path: Path) -> None:
        import onnxruntime as ort  # type: ignore[import-untyped]

        options = ort.SessionOptions()
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # Run a file for arm64 in integers here too, as an arm64 board would.
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        self._session = ort.InferenceSession(
            os.fspath(path), options, providers=["CPUExecutionProvider"]
        )
        self._input = self._session.get_inputs()[0].name
        self._outputs = [o.name for o in self._session.get_outputs()]

    def run(self, batch: NDArray[Any]) -> dict[str, NDArray[Any]]:
        parts = [
            self._session.run(None, {self._input: batch[i : i + BATCH]})
            for i in range(0, len(batch), BATCH)
        ]
        return {name: np.concatenate([p[k] for p in parts]) for k, name in enumerate(self._outputs)}


class _TfliteRunner:
    """LiteRT, which every exporter has: on x86 some 30 times faster than tflite-runtime 2.14."""

    def __init__(self, path: Path) -> None:
        from ai_edge_litert.interpreter import Interpreter  # type: ignore[import-untyped]

        interpreter = Interpreter(model_path=os.fspath(path), num_threads=1)
        with quiet():  # it announces its delegate
            interpreter.allocate_tensors()
        self._run = interpreter.get_signature_runner()
        (self._input,) = self._run.get_input_details()

    def run(self, batch: NDArray[Any]) -> dict[str, NDArray[Any]]:
        # The outputs are views into the interpreter, which the next call overwrites.
        rows = [
            {k: np.array(v) for k, v in self._run(**{self._input: batch[i : i + 1]}).items()}
            for i in range(len(batch))
        ]
        return {name: np.concatenate([r[name] for r in rows]) for name in rows[0]}
