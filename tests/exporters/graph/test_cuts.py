"""Cuts: where they are, what they cost, and that the halves compose to the whole."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from edge_kit.errors import ExportError, UsageError  # noqa: E402
from exporters.graph.cuts import Candidate, choose, find_cuts, split  # noqa: E402
from exporters.graph.trace import Traced, trace  # noqa: E402
from tests.support.export.tiny_nets import (  # noqa: E402
    BLOCK_MACS,
    BLOCKS,
    DEEP_MACS,
    DENSE_MACS,
    SHAPE,
    STEM_MACS,
    Net,
    Residual,
    images,
    net,
    settle,
)

pytestmark = pytest.mark.export


@pytest.fixture(scope="module")
def traced() -> dict[str, Traced]:
    return {kind: trace(net(kind), SHAPE) for kind in BLOCKS}


class Widening(nn.Module):
    """Three layers of one resolution, each wider than the one before, then a strided one."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(3, 8, 2), (8, 32, 1), (32, 64, 1), (64, 64, 2)]
        self.layers = nn.Sequential(*(nn.Conv2d(i, o, 3, s, 1) for i, o, s in widths))
        self.fc = nn.Linear(64, 4)

    def forward(self, x):
        return self.fc(self.layers(x).mean((2, 3)))


class Spanned(nn.Module):
    """The image itself goes to the last layer, so nothing single crosses anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(self.conv(x).mean((2, 3)) + x.mean((2, 3)))


class Repeated(nn.Module):
    """Uses one convolution twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3, 2)

    def forward(self, x):
        x = torch.relu(self.conv(x)) * 0.5
        return self.fc(torch.relu(self.conv(x)).mean((2, 3)))


class DroppedNoise(nn.Module):
    """Noise too small for the tracer's check; kept as a layer because of its name."""

    def forward(self, x):
        return x + 1e-6 * torch.rand_like(x)


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_halves_at_every_cut_compose_to_whole(traced, kind):
    whole, batch = traced[kind], images(3)
    cuts = find_cuts(whole)
    assert len(cuts) >= 2
    for cut in cuts:
        trunk, tail = split(whole, cut)
        with torch.no_grad():
            features = trunk(batch)
            assert tuple(features.shape[1:]) == cut.shape
            assert torch.equal(tail(features), whole(batch))


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_tail_at_every_cut_reads_features_alone(traced, kind):
    for cut in find_cuts(traced[kind]):
        trunk, tail = split(traced[kind], cut)
        for half in (trunk, tail):
            assert sum(n.op == "placeholder" for n in half.graph.nodes) == 1
            assert isinstance(half.graph.output_node().args[0], torch.fx.Node)


@pytest.mark.parametrize("kind", sorted(BLOCKS))
def test_cut_macs_equal_hand_count_and_ascend(traced, kind):
    whole = STEM_MACS + BLOCK_MACS[kind] + DEEP_MACS + DENSE_MACS
    assert traced[kind].macs == whole
    cuts = {c.name: c for c in find_cuts(traced[kind])}
    before = STEM_MACS + BLOCK_MACS[kind]
    assert cuts["stem"].macs_before == STEM_MACS
    assert cuts["block"].macs_before == before
    assert cuts["block"].macs_share == pytest.approx(before / whole)
    ascending = [c.macs_before for c in cuts.values()]
    assert ascending == sorted(set(ascending))


@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        ("residual", []),
        ("inverted-residual", []),
        ("concatenated", []),
        ("shuffled", []),  # the shuffle costs nothing, so only its end is a cut
        ("squeeze-excite", ["block.mix"]),
    ],
)
def test_cuts_inside_block_are_found_only_where_one_tensor_crosses(traced, kind, inside):
    names = [c.name for c in find_cuts(traced[kind])]
    assert [n for n in names if n.startswith("block.")] == inside
    assert {"stem", "block"} <= set(names)


def test_cut_shapes_are_those_of_the_maps(traced):
    shapes = {c.name: c.shape for c in find_cuts(traced["residual"])}
    assert shapes == {"stem": (8, 8, 8), "block": (8, 8, 8), "deep": (12, 4, 4)}


@pytest.mark.parametrize(
    ("between", "name", "shape"),
    [
        (nn.MaxPool2d(2), "1", (4, 8, 8)),  # fewer bytes behind it
        (nn.Upsample(scale_factor=2), "0", (4, 16, 16)),  # fewer bytes before it
        (nn.Sigmoid(), "1", (4, 16, 16)),  # the last of equals
    ],
    ids=["pool", "upsample", "activation"],
)
def test_cut_of_equal_macs_is_the_one_with_fewest_bytes(between, name, shape):
    layers = [nn.Conv2d(3, 4, 3, padding=1), between, nn.Conv2d(4, 2, 3, 4)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    first = find_cuts(trace(model.eval(), SHAPE))[0]
    assert (first.name, first.shape) == (name, shape)


def test_cut_behind_last_map_is_not_found(traced):
    assert "pool" not in [c.name for c in find_cuts(traced["residual"])]


def test_module_used_twice_gets_numbered_cut():
    names = [c.name for c in find_cuts(trace(Repeated().eval(), SHAPE))]
    assert len(names) == len(set(names)) == 2


def test_model_without_usable_cut_is_refused():
    with pytest.raises(ExportError, match="no usable cut"):
        find_cuts(trace(Spanned().eval(), SHAPE))


def test_model_of_dense_layers_has_no_usable_cut():
    dense = nn.Sequential(nn.Flatten(), nn.Linear(768, 8), nn.ReLU(), nn.Linear(8, 2)).eval()
    with pytest.raises(ExportError, match="no usable cut"):
        find_cuts(trace(dense, SHAPE))


def test_trunk_shares_weights_and_tail_has_its_own(traced):
    whole = traced["residual"]
    trunk, tail = split(whole, choose(find_cuts(whole), "block"))
    own = whole.module.state_dict(keep_vars=True)
    inside, behind = trunk.state_dict(keep_vars=True), tail.state_dict(keep_vars=True)
    assert inside
    assert all(inside[k] is own[k] for k in inside)
    assert all(behind[k].data_ptr() != own[k].data_ptr() for k in behind)
    assert not set(inside) & set(behind)


def test_tail_weights_changed_leave_model_unchanged(traced):
    _, tail = split(traced["residual"], choose(find_cuts(traced["residual"]), "stem"))
    before = traced["residual"].module.state_dict()["fc.weight"].clone()
    with torch.no_grad():
        for p in tail.parameters():
            p.add_(1.0)
    assert torch.equal(traced["residual"].module.state_dict()["fc.weight"], before)


def test_split_of_model_with_random_layer_is_refused():
    torch.manual_seed(0)
    model = Net(Residual())
    model.fc = nn.Sequential(DroppedNoise(), model.fc)
    whole = trace(settle(model), SHAPE)
    with pytest.raises(ExportError, match="split at stem, the two halves do not give"):
        split(whole, choose(find_cuts(whole), "stem"))


def candidate(name: str, shape: tuple[int, int, int], share: float, *aliases: str) -> Candidate:
    return Candidate(name, aliases, name, shape, round(1000 * share), share)


# Bytes behind a bottleneck of 4 channels: 256, 256, 64, 64, 64, 16.
CUTS = (
    candidate("stem", (8, 8, 8), 0.05),
    candidate("one", (16, 8, 8), 0.2, "group"),
    candidate("two", (24, 4, 4), 0.3),
    candidate("two.wide", (96, 4, 4), 0.4),
    candidate("three", (24, 4, 4), 0.5, "_stage.3"),
    candidate("four", (32, 2, 2), 0.9),
)


@pytest.mark.parametrize(
    ("budget", "name"),
    [
        (0.5, "three"),  # the deepest of the narrow ones, not the widened one
        (0.45, "two"),
        (0.25, "one"),
        (0.06, "stem"),
        (0.12, "stem"),  # none between half of the budget and the budget
        (1.0, "four"),  # fewest bytes
    ],
)
def test_auto_within_budget_takes_deepest_of_smallest_cuts(budget, name):
    assert choose(CUTS, "auto", budget=budget, channels=4).name == name


def test_auto_with_budget_below_all_cuts_is_refused():
    with pytest.raises(ExportError, match=r"no cut has at most 1% .*stem, has 5%"):
        choose(CUTS, "auto", budget=0.01)


def test_auto_with_narrow_first_layer_cuts_deeper():
    cuts = find_cuts(trace(Widening().eval(), (3, 32, 32)))
    shares = {c.name: c.macs_share for c in cuts}
    assert shares["layers.0"] < 0.05
    assert 0.4 < shares["layers.2"] < 0.8
    assert choose(cuts, "auto", budget=0.8, channels=12).name == "layers.2"
    assert choose(cuts, "auto", budget=0.05, channels=12).name == "layers.0"


@pytest.mark.parametrize(
    ("wanted", "name"),
    [("one", "one"), ("group", "one"), ("stage.3", "three"), ("_two.wide", "two.wide")],
)
def test_cut_named_by_alias_or_without_underscores_is_found(wanted, name):
    assert choose(CUTS, wanted).name == name


def test_unknown_cut_name_lists_first_twelve():
    many = tuple(candidate(f"layer{k}", (8, 8, 8), k / 20) for k in range(14))
    with pytest.raises(UsageError, match=r"no cut named 'layer99'") as caught:
        choose(many, "layer99")
    assert "layer0, layer1" in caught.value.hint
    assert caught.value.hint.endswith("layer11 and 2 more")


def test_candidate_counts_int8_bytes():
    cut = candidate("one", (16, 8, 4), 0.2)
    assert cut.nbytes == 512
    assert cut.sent(4) == 128
    assert cut.sent(99) == 512  # a bottleneck is never wider than the map
    assert cut.to_json() == {
        "name": "one",
        "shape": [16, 8, 4],
        "bytes": 512,
        "macs_before": 200,
        "macs_share": 0.2,
    }
