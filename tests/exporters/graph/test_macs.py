"""Multiply-accumulates and shapes of each node, against counts made by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import fx, nn  # noqa: E402

from exporters.graph.macs import record  # noqa: E402
from tests.support.export.tiny_nets import (  # noqa: E402
    BLOCK_MACS,
    DEEP_MACS,
    DENSE_MACS,
    STEM_MACS,
    images,
    net,
)

pytestmark = pytest.mark.export


def recorded(model: nn.Module, batch):
    return record(fx.symbolic_trace(model.eval()), batch)


@pytest.mark.parametrize("kind", sorted(BLOCK_MACS))
def test_macs_of_each_block_equal_hand_count(kind):
    macs = recorded(net(kind), images(1)).macs
    parts = {"stem": 0, "block": 0, "deep": 0, "fc": 0}
    for node, count in macs.items():
        parts[next((p for p in parts if node.startswith(p)), "block")] += count
    assert parts == {
        "stem": STEM_MACS,
        "block": BLOCK_MACS[kind],
        "deep": DEEP_MACS,
        "fc": DENSE_MACS,
    }


def test_macs_of_batch_grow_with_its_size():
    one, three = (sum(recorded(net("residual"), images(n)).macs.values()) for n in (1, 3))
    assert three == 3 * one


@pytest.mark.parametrize(
    ("layer", "macs"),
    [
        (nn.Conv2d(3, 5, 3), 5 * 3 * 9 * 14 * 14),
        (nn.Conv2d(3, 6, 3, 2, 1), 6 * 3 * 9 * 8 * 8),
        (nn.Conv2d(3, 6, (1, 3), groups=3), 6 * 1 * 3 * 16 * 14),
        (nn.ConvTranspose2d(3, 5, 2, 2), 5 * 3 * 4 * 16 * 16),
        (nn.Linear(16, 7), 3 * 16 * 16 * 7),
        (nn.ReLU6(), 0),
        (nn.BatchNorm2d(3), 0),
        (nn.AvgPool2d(2), 0),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else None,
)
def test_macs_of_single_layer_equal_hand_count(layer, macs):
    assert sum(recorded(nn.Sequential(layer), images(1)).macs.values()) == macs


class Sizes(nn.Module):
    """Gives one node of every kind of value."""

    def forward(self, x):
        batch, whole = x.size(0), x.size()
        wide = x.dim() > 3
        parts = x.split(1, 1)
        return parts[0].reshape(batch, whole[2] * whole[3]), wide


def test_record_notes_shapes_sizes_and_nothing_else():
    found = recorded(Sizes(), images(2))
    assert found.values["x"] == (2, 3, 16, 16)
    assert found.values["size"] == 2
    assert found.values["size_1"] == (2, 3, 16, 16)
    assert found.values["mul"] == 256
    assert found.values["split"] is None
    assert found.values["gt"] is None  # a bool is not a size
    assert found.values["reshape"] == (2, 256)
    assert {"x", "reshape"} <= found.tensors
    assert not found.tensors & {"size", "size_1", "mul", "split", "gt"}


def test_record_leaves_no_gradients():
    model = nn.Sequential(nn.Conv2d(3, 4, 3))
    recorded(model, images(1).requires_grad_())
    assert all(p.grad is None for p in model.parameters())
