"""ONNX Runtime on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.bundle.split import EngineFile
from edge_kit.engines.check import check_batch
from edge_kit.engines.engine import Tensors
from edge_kit.errors import EngineError, MissingExtraError
from edge_kit.tensors import TensorSpec

__all__ = ["OnnxEngine", "open_session", "session_options"]

_ERRORS_ONLY = 3
# What the runtime calls the element types of tensors.DTYPES.
_TYPES = {
    "int8": "tensor(int8)",
    "uint8": "tensor(uint8)",
    "int32": "tensor(int32)",
    "float16": "tensor(float16)",
    "float32": "tensor(float)",
}


class OnnxEngine:
    """A model in ONNX Runtime.

    Args:
        path: The ``.onnx`` file.
        file: What the manifest says of it.
        threads: Size of the thread pool, from 1.
        profile: Start of the name of a trace of every operator, which slows the model down; None
            for none. `end_profile` finishes it.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        EngineError: The file cannot be loaded, or does not have the tensors of the manifest.
    """

    name = "onnx"

    def __init__(
        self, path: Path, file: EngineFile, threads: int, *, profile: Path | None = None
    ) -> None:
        self.threads = threads
        self.inputs: Mapping[str, TensorSpec] = {s.name: s for s in file.inputs}
        self.outputs: Mapping[str, TensorSpec] = {s.name: s for s in file.outputs}
        options = session_options(threads)
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        self._session: Any = open_session(path, options)
        self._names = list(self.outputs)
        self._one_by_one = self._check_signature(path)

    def run(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """Run one batch.

        Raises:
            EngineError: The input does not fit, or the model fails.
        """
        n = check_batch(tensors, self.inputs)
        if self._one_by_one and n != 1:
            rows = [self._call({k: v[i : i + 1] for k, v in tensors.items()}) for i in range(n)]
            return {k: np.concatenate([row[k] for row in rows]) for k in self._names}
        return self._call(tensors)

    def end_profile(self) -> Path:
        """Finish the trace that `profile` asked for and return its file."""
        return Path(self._session.end_profiling())

    def close(self) -> None:
        """Free the session and its threads."""
        self._session = None

    def _call(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        if self._session is None:
            raise EngineError("this engine is closed")
        try:
            values = self._session.run(self._names, dict(tensors))
        except Exception as error:  # see open_session
            raise EngineError(f"the model failed ({_first_line(error)})") from None
        return dict(zip(self._names, values, strict=True))

    def _check_signature(self, path: Path) -> bool:
        """Compare with the manifest; return whether the file takes batches of one only."""
        have = {v.name: v for v in (*self._session.get_inputs(), *self._session.get_outputs())}
        for spec in (*self.inputs.values(), *self.outputs.values()):
            value = have.get(spec.name)
            if value is None:
                raise EngineError(f"{path} has no tensor {spec.name!r} (it has {sorted(have)})")
            dims = value.shape[1:]
            fits = len(dims) == len(spec.shape) and all(
                not isinstance(d, int) or d == want
                for d, want in zip(dims, spec.shape, strict=True)
            )
            if value.type != _TYPES[spec.dtype] or not fits:
                raise EngineError(
                    f"{spec.name} of {path} is {value.type} {dims}, "
                    f"the manifest says {spec.dtype} {list(spec.shape)}",
                    "export the bundle again",
                )
        return any(have[name].shape[0] == 1 for name in self.inputs)


def session_options(threads: int) -> Any:
    """Return the options that every session of edge-kit has.

    Raises:
        EngineError: onnxruntime cannot be imported.
    """
    options = _onnxruntime().SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    # Its workers otherwise spin between two frames and burn an idle core.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # arm64's files (int8 activations) compute in integers there; here too, to the same bits.
    options.add_session_config_entry("session.qdqisint8allowed", "1")
    return options


def open_session(path: Path, options: Any) -> Any:
    """Load a model file on the CPU.

    Raises:
        EngineError: onnxruntime cannot load it.
    """
    ort = _onnxruntime()
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's exceptions have no common base below it
        raise EngineError(
            f"onnxruntime {ort.__version__} cannot load {path} ({_first_line(error)})",
            "update onnxruntime, or export again for an older one",
        ) from None


def _onnxruntime() -> Any:
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError as error:
        raise _missing(error) from None
    return onnxruntime


def _missing(error: ImportError) -> EngineError:
    if error.name == "onnxruntime":
        return MissingExtraError("onnxruntime", "onnx", "running an ONNX model")
    return EngineError(
        f"onnxruntime is installed and cannot be imported ({error})",
        "install a build for this Python and this CPU",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300] or type(error).__name__
