"""Check a batch against the specs of a model, before native code sees it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_kit.engines.engine import Tensors
from edge_kit.errors import EngineError
from edge_kit.tensors import TensorSpec

__all__ = ["check_batch"]


def check_batch(tensors: Tensors, specs: Mapping[str, TensorSpec]) -> int:
    """Return N, the batch size, at least 1.

    Raises:
        EngineError: A tensor is missing, superfluous, or of another shape or dtype.
    """
    if tensors.keys() != specs.keys():
        raise EngineError(f"the model takes {sorted(specs)}, not {sorted(tensors)}")
    n = -1
    for name, spec in specs.items():
        value = tensors[name]
        if value.dtype != np.dtype(spec.dtype) or value.shape[1:] != spec.shape:
            raise EngineError(
                f"{name} is {value.dtype}{value.shape}, "
                f"the model takes {spec.dtype} (N, {', '.join(map(str, spec.shape))})"
            )
        if len(value) < 1 or n not in (-1, len(value)):
            raise EngineError(f"{name} has {len(value)} samples, which makes no batch")
        n = len(value)
    return n
