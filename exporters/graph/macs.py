"""Run a traced graph once and note each node's value and multiply-accumulates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import FlopCounterMode

__all__ = ["Recording", "record"]


@dataclass(frozen=True)
class Recording:
    """What one run of a graph showed.

    Attributes:
        values: Node name to what it made: a shape tuple for a tensor, the integer or the tuple
            of integers for sizes, None for anything else.
        tensors: Names of the nodes that made a tensor.
        macs: Node name to multiply-accumulates, for the whole batch.
    """

    values: dict[str, Any]
    tensors: frozenset[str]
    macs: dict[str, int]


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, counter: FlopCounterMode) -> None:
        super().__init__(module)
        self.counter = counter
        self.values: dict[str, Any] = {}
        self.tensors: set[str] = set()
        self.macs: dict[str, int] = {}

    def run_node(self, n: fx.Node) -> Any:
        before = self.counter.get_total_flops()
        result = super().run_node(n)
        # The counter sees a multiply and an add as two operations.
        self.macs[n.name] = (self.counter.get_total_flops() - before) // 2
        if isinstance(result, torch.Tensor):
            self.tensors.add(n.name)
            self.values[n.name] = tuple(result.shape)
        elif isinstance(result, int) and not isinstance(result, bool):
            self.values[n.name] = result
        elif isinstance(result, tuple) and all(type(v) is int for v in result):
            self.values[n.name] = tuple(result)
        else:
            self.values[n.name] = None
        return result


def record(module: fx.GraphModule, batch: torch.Tensor) -> Recording:
    """Run `batch` through the graph, node by node.

    Args:
        module: A traced graph with one input.
        batch: (N, C, H, W).
    """
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        recorder = _Recorder(module, counter)
        recorder.run(batch)
    return Recording(recorder.values, frozenset(recorder.tensors), recorder.macs)
