"""What a TFLite file says of itself, and the small repairs that the converters leave to us."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import ExportError

__all__ = ["requirements", "tidy"]

ALIGNMENT = 16


def requirements(path: Path) -> dict[str, Any]:
    """Return the schema version and the version of each operation.

    The file's own ``min_runtime_version`` is left out: it dates from before quantization.
    """
    schema = _schema()
    names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
    model = schema.Model.GetRootAs(path.read_bytes(), 0)
    ops: dict[str, int] = {}
    for k in range(model.OperatorCodesLength()):
        code = model.OperatorCodes(k)
        # Codes below 127 may stand in the old byte field alone.
        name = names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
        ops[name] = max(code.Version(), ops.get(name, 0))
    return {"tflite_schema": model.Version(), "ops": dict(sorted(ops.items()))}


def tidy(content: bytes, fixed: Mapping[str, tuple[float, int]]) -> bytes:
    """Set exact scales where the manifest announces them, and shorten the tensors' names.

    Args:
        content: A quantized model with one signature.
        fixed: Scale and zero point by signature name.

    Raises:
        ExportError: A tensor came out of quantization with other values than asked for, beyond
            the last bits of its scale.
    """
    schema = _schema()
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    (graph,) = model.subgraphs
    (signature,) = model.signatureDefs
    places = {s.name.decode(): s.tensorIndex for s in [*signature.inputs, *signature.outputs]}
    for buffer in model.buffers:
        if buffer.offset > 1:  # larger models keep their constants behind the flatbuffer
            end = buffer.offset + buffer.size
            buffer.data = np.frombuffer(content[buffer.offset : end], np.uint8)
            buffer.offset = buffer.size = 0
    for name, (scale, zero_point) in fixed.items():
        quantization = graph.tensors[places[name]].quantization
        have = (float(quantization.scale[0]), int(quantization.zeroPoint[0]))
        if have[1] != zero_point or not np.isclose(have[0], scale, rtol=1e-5):
            raise ExportError(
                f"{name} came out of TFLite quantization with scale {have[0]:.6g} and zero point "
                f"{have[1]}, not {scale:.6g} and {zero_point}"
            )
        quantization.scale = [scale]
    for k, tensor in enumerate(graph.tensors):
        tensor.name = f"t{k}".encode()
    for name, k in places.items():
        graph.tensors[k].name = name.encode()
    builder = _sharing_builder(len(content))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _sharing_builder(size: int) -> Any:
    """Return a flatbuffer builder that stores equal vectors once.

    Per-channel quantization repeats long vectors of zeros (one int64 a channel, for weights and
    for biases): on a narrow trunk they are an eighth of the file.
    """
    import flatbuffers  # type: ignore[import-untyped]

    class SharingBuilder(flatbuffers.Builder):  # type: ignore[misc]
        def __init__(self, size: int) -> None:
            super().__init__(size)
            self.head: int = self.Head()
            self.made: dict[tuple[str, bytes], int] = {}

        def CreateNumpyVector(self, x: NDArray[Any]) -> int:  # noqa: N802 (flatbuffers' name)
            key = (x.dtype.str, x.tobytes())
            if key not in self.made:
                self.made[key] = self._bytes(x) if x.dtype == np.uint8 else self._numbers(x)
            return self.made[key]

        def _numbers(self, x: NDArray[Any]) -> int:
            return int(super().CreateNumpyVector(x))

        def _bytes(self, x: NDArray[np.uint8]) -> int:
            # The schema demands constants on 16-byte boundaries; its Python code forgets it.
            self.StartVector(1, x.size, ALIGNMENT)
            start = int(self.head) - x.size
            self.head = start
            self.Bytes[start : start + x.size] = x.tobytes()
            return int(self.EndVector())

    return SharingBuilder(size)


def _schema() -> Any:
    from ai_edge_litert import (  # type: ignore[import-untyped]
        schema_py_generated as schema,
    )

    return schema
