"""Tracing: the graph computes what the model computes, or an error names the line."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from edge_kit.errors import ExportError  # noqa: E402
from exporters.graph.cuts import choose, find_cuts, split  # noqa: E402
from exporters.graph.trace import trace  # noqa: E402
from tests.support.export.tiny_nets import (  # noqa: E402
    BLOCKS,
    CLASSES,
    SHAPE,
    Net,
    Residual,
    images,
    net,
    settle,
)

pytestmark = pytest.mark.export


class ShapeSteered(Net):
    def forward(self, x):
        if x.shape[2] > 8:
            x = x * 0.5
        return super().forward(x)


class ValueSteered(Net):
    def forward(self, x):
        if x.sum() > 0:  # the line that the message must show
            x = -x
        return super().forward(x)


class Optional(Net):
    def forward(self, x, mask=None):
        return super().forward(x if mask is None else x * mask)


class TwoInputs(Net):
    def forward(self, x, mask):
        return super().forward(x * mask)


class Pair(Net):
    def forward(self, x):
        return super().forward(x), x


class FixedBatch(Net):
    def forward(self, x):
        return super().forward(x).view(2, CLASSES)


class InPlace(nn.Module):
    """Reads its input again after an activation changed it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, CLASSES, 3), nn.Hardswish(inplace=True)

    def forward(self, x):
        x = self.conv(x)
        return (self.act(x) + x).mean((2, 3))


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_traced_model_gives_same_logits(kind):
    model = net(kind)
    traced, batch = trace(model, SHAPE), images(5)
    with torch.no_grad():
        torch.testing.assert_close(traced(batch), model(batch), atol=1e-5, rtol=1e-5)
    assert (traced.method, traced.classes, traced.input_shape) == ("fx", CLASSES, SHAPE)


def test_traced_model_keeps_dropout_for_later_training():
    model = net("residual")
    model.fc = nn.Sequential(nn.Dropout(0.5), model.fc)
    traced, batch = trace(model, SHAPE), images(4)
    assert torch.equal(traced(batch), traced(batch))
    traced.module.train()
    assert not torch.equal(traced(batch), traced(batch))


def test_trace_of_training_model_uses_running_statistics():
    model = net("residual").train()
    before = model.stem[1].running_mean.clone()
    trace(model, SHAPE)
    assert torch.equal(model.stem[1].running_mean, before)


def test_trace_leaves_random_state_unchanged():
    model, before = net("residual"), torch.get_rng_state()
    trace(model, SHAPE)
    assert torch.equal(torch.get_rng_state(), before)


def test_adaptive_pool_gets_fixed_kernel():
    code = trace(net("squeeze-excite"), SHAPE).module.code
    assert "avg_pool2d" in code
    assert "adaptive" not in code
    assert "mean" not in code


@pytest.mark.parametrize("layer", [nn.Hardswish(True), nn.Hardsigmoid()])
def test_hard_activation_is_rewritten_and_keeps_cut_name(layer):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Conv2d(4, 4, 3), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(4 * 12 * 12, 3)).eval()
    found, batch = trace(model, SHAPE), 4 * images(3)
    assert "hard" not in found.module.code
    assert find_cuts(found)[0].name == "0.1"
    with torch.no_grad():
        assert torch.allclose(found(batch), model(batch), atol=1e-5)


def test_shape_dependent_control_flow_uses_torch_export():
    model = settle(ShapeSteered(Residual()))
    traced, batch = trace(model, SHAPE), images(7)
    assert traced.method == "export"
    trunk, tail = split(traced, choose(find_cuts(traced), "auto", budget=0.9))
    with torch.no_grad():
        assert torch.allclose(tail(trunk(batch)), model(batch), atol=1e-5)


def test_value_dependent_control_flow_error_names_line(capfd):
    with pytest.raises(ExportError, match=r"test_trace\.py:\d+: if x\.sum\(\) > 0"):
        trace(ValueSteered(Residual()), SHAPE)
    assert capfd.readouterr() == ("", "")


def test_optional_argument_keeps_its_default():
    model, batch = settle(Optional(Residual())), images(3)
    with torch.no_grad():
        assert torch.allclose(trace(model, SHAPE)(batch), model(batch), atol=1e-5)


def test_required_second_input_is_refused():
    with pytest.raises(ExportError, match=r"'mask'; it must take one tensor, a batch of images"):
        trace(TwoInputs(Residual()).eval(), SHAPE)


def test_batch_size_fixed_in_model_is_refused():
    with pytest.raises(ExportError, match="must accept any batch size"):
        trace(FixedBatch(Residual()), SHAPE)


def test_input_changed_in_place_is_refused():
    with pytest.raises(ExportError, match=r"differs from the model by .* in place"):
        trace(InPlace(), SHAPE)


def test_weight_that_is_nan_is_refused():
    model = net("residual")
    with torch.no_grad():
        model.stem[0].weight[0] = float("nan")
    with pytest.raises(ExportError, match="differs from the model by nan"):
        trace(model, SHAPE)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3)), r"shape \(2, 4, 14, 14\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(768, 1)), r"shape \(2, 1\)"),
        (nn.Sequential(nn.Conv2d(4, 4, 3)), "fails on an input of 3 x 16 x 16"),
        (Pair(Residual()), "returns a tuple, not one tensor of logits"),
    ],
    ids=["map", "one-class", "channels", "tuple"],
)
def test_model_without_logits_or_with_wrong_input_is_refused(model, said):
    with pytest.raises(ExportError, match=said):
        trace(model, SHAPE)


def test_error_does_not_name_exporter_lines():
    with pytest.raises(ExportError) as caught:
        trace(nn.Sequential(nn.Conv2d(4, 4, 3)), SHAPE)
    assert "exporters/" not in str(caught.value)
