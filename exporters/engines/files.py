"""All engine files of an export."""

from __future__ import annotations

from dataclasses import dataclass

from edge_kit.bundle import machine_arch
from edge_kit.tensors import TensorSpec
from exporters.engines.exported import Exported

__all__ = ["EngineFiles"]


@dataclass(frozen=True)
class EngineFiles:
    """Everything that an export runs or ships.

    Attributes:
        twin: Float ONNX twin of the end model; judged against, not shipped.
        ends: int8 end models, ONNX before TFLite.
        tail: The cloud half.
        full: The whole float model.
    """

    twin: Exported
    ends: tuple[Exported, ...]
    tail: Exported
    full: Exported

    @property
    def shipped(self) -> tuple[Exported, ...]:
        """What goes into the bundle."""
        return (*self.ends, self.tail, self.full)

    @property
    def features(self) -> TensorSpec:
        """What crosses the network, NCHW."""
        return self.tail.entry.inputs[0]

    @property
    def tflite(self) -> Exported | None:
        """The TFLite end model, if there is one."""
        return next((f for f in self.ends if f.entry.engine == "tflite"), None)

    @property
    def primary(self) -> Exported:
        """The end model that calibrates: ONNX for this machine if there is one."""
        onnx = [f for f in self.ends if f.entry.engine == "onnx"]
        own = [f for f in onnx if f.entry.arch == machine_arch()]
        return (own or onnx or list(self.ends))[0]
