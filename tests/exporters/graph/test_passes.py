"""Each rewrite of a graph keeps its values, and leaves alone what it cannot rewrite."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import fx, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from exporters.graph.macs import record  # noqa: E402
from exporters.graph.passes import BATCH, fix_pools, fold_sizes, spell_out  # noqa: E402
from tests.support.export.tiny_nets import BLOCKS, images, net  # noqa: E402

pytestmark = pytest.mark.export


class Lambda(nn.Module):
    """A module of one function."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def folded(model: nn.Module) -> fx.GraphModule:
    module = fx.symbolic_trace(model.eval())
    fold_sizes(module, record(module, images(2)), record(module, images(3)))
    module.graph.lint()
    return module


def pooled(model: nn.Module, side: int = 16) -> fx.GraphModule:
    module = fx.symbolic_trace(model.eval())
    fix_pools(module, record(module, images(2, shape=(3, side, side))))
    module.graph.lint()
    return module


def check_equal(module: nn.Module, model: nn.Module, batch) -> None:
    with torch.no_grad():
        torch.testing.assert_close(module(batch), model(batch), atol=1e-6, rtol=1e-5)


FLATTENED = {
    "view": lambda x: x.view(x.size(0), -1),
    "shape": lambda x: x.reshape(x.shape[0], x.shape[1] * x.shape[2] * x.shape[3]),
    "unpacked": lambda x: x.reshape(x.size(0), x.size(1) * 4, -1).flatten(1),
    "tuple": lambda x: torch.ones_like(x).expand(x.size()).add(x).flatten(1),
    "keyword": lambda x: x.flatten(1).reshape(shape=(x.size(0), 2, -1)).flatten(1),
}


@pytest.mark.parametrize("way", sorted(FLATTENED))
def test_fold_sizes_keeps_values_for_unseen_batch(way):
    model = Lambda(FLATTENED[way])
    check_equal(folded(model), model, images(5))


@pytest.mark.parametrize("way", sorted(FLATTENED))
def test_fold_sizes_leaves_one_batch_node_as_only_size(way):
    graph = folded(Lambda(FLATTENED[way])).graph
    sizes = [n for n in graph.nodes if n.target in ("size", getattr)]
    assert [bool(n.meta.get(BATCH)) for n in sizes] == [True]
    (image,) = (n for n in graph.nodes if n.op == "placeholder")
    assert sizes[0].args == (image, 0)


def test_fold_sizes_without_sizes_adds_no_batch_node():
    graph = folded(Lambda(lambda x: x.flatten(1) * 2)).graph
    assert [n.op for n in graph.nodes] == ["placeholder", "call_method", "call_function", "output"]
    assert not any(BATCH in n.meta for n in graph.nodes)


def test_fold_sizes_keeps_number_that_depends_on_batch():
    model = Lambda(lambda x: (x / (2 * x.size(0) + 1)).flatten(1))
    check_equal(folded(model), model, images(7))


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_fold_sizes_keeps_values_of_block(kind):
    model = net(kind)
    check_equal(folded(model), model, images(5))


POOLS = {
    "module": nn.AdaptiveAvgPool2d(1),
    "module-2x2": nn.AdaptiveAvgPool2d(2),
    "module-rectangle": nn.AdaptiveAvgPool2d((4, 2)),
    "function": Lambda(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "function-keyword": Lambda(lambda x: F.adaptive_avg_pool2d(x, output_size=(1, 8))),
    "mean": Lambda(lambda x: x.mean((2, 3))),
    "mean-negative": Lambda(lambda x: x.mean([-1, -2])),
    "mean-keep": Lambda(lambda x: x.mean((2, 3), True)),
    "mean-keep-keyword": Lambda(lambda x: torch.mean(x, dim=(3, 2), keepdim=True)),
}


@pytest.mark.parametrize("kind", sorted(POOLS))
def test_fix_pools_keeps_values_with_fixed_kernel(kind):
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), POOLS[kind], nn.ReLU())
    module = pooled(model)
    check_equal(module, model, images(3))
    targets = [n.target for n in module.graph.nodes]
    assert F.avg_pool2d in targets
    assert "1" not in targets  # the module
    assert not {"mean", torch.mean, F.adaptive_avg_pool2d}.intersection(targets)


NOT_POOLS = {
    "channels": Lambda(lambda x: x.mean(1)),
    "channels-tuple": Lambda(lambda x: x.mean((1,))),
    "rows": Lambda(lambda x: x.mean((2,))),
    "all": Lambda(lambda x: x.mean()),
    "sequence": Lambda(lambda x: x.flatten(2).mean((-1,))),
    "tokens": Lambda(lambda x: x.flatten(2).unsqueeze(0).mean((0, 1))),
    "half-open": nn.AdaptiveAvgPool2d((None, 1)),
    "maximum": nn.AdaptiveMaxPool2d(1),
}


@pytest.mark.parametrize("kind", sorted(NOT_POOLS))
def test_fix_pools_leaves_other_reductions_alone(kind):
    model = nn.Sequential(NOT_POOLS[kind])
    module = pooled(model)
    check_equal(module, model, images(3))
    assert F.avg_pool2d not in [n.target for n in module.graph.nodes]


def test_fix_pools_of_indivisible_map_leaves_pool_alone():
    model = nn.Sequential(nn.AdaptiveAvgPool2d(2))
    module = pooled(model, side=15)
    check_equal(module, model, images(2, shape=(3, 15, 15)))
    assert F.avg_pool2d not in [n.target for n in module.graph.nodes]


def test_fix_pools_keeps_module_path_of_pool():
    module = pooled(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.AdaptiveAvgPool2d(1))))
    (pool,) = (n for n in module.graph.nodes if n.target is F.avg_pool2d)
    assert "1.0" in str(pool.meta["nn_module_stack"])


HARD = {
    "swish-module": nn.Hardswish(),
    "swish-inplace": nn.Hardswish(inplace=True),
    "swish-function": Lambda(F.hardswish),
    "sigmoid-module": nn.Hardsigmoid(),
    "sigmoid-function": Lambda(F.hardsigmoid),
}


@pytest.mark.parametrize("kind", sorted(HARD))
def test_spell_out_keeps_values_across_both_knees(kind):
    module = fx.symbolic_trace(nn.Sequential(HARD[kind]))
    spell_out(module)
    ramp = torch.cat([torch.linspace(-6, 6, 241), torch.tensor([-3.0, 0.0, 3.0, -1e6, 1e6])])
    expected = F.hardswish(ramp) if kind.startswith("swish") else F.hardsigmoid(ramp)
    torch.testing.assert_close(module(ramp), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", sorted(HARD))
def test_spell_out_uses_sums_products_and_relu6_only(kind):
    module = fx.symbolic_trace(nn.Sequential(HARD[kind]))
    spell_out(module)
    module.graph.lint()
    made = {n.target for n in module.graph.nodes if n.op not in ("placeholder", "output")}
    assert made == {torch.add, torch.mul, F.relu6}


def test_spell_out_of_exported_graph_finds_aten_activations():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Hardswish(), nn.Hardsigmoid()).eval()
    module = torch.export.export(model, (images(2),)).module()
    spell_out(module)
    assert "hard" not in module.code
    check_equal(module, model, images(2))


def test_spell_out_leaves_other_activations_alone():
    model = nn.Sequential(nn.ReLU6(), nn.SiLU(), nn.Sigmoid(), nn.Hardtanh())
    module = fx.symbolic_trace(model)
    before = module.code
    spell_out(module)
    assert module.code == before
