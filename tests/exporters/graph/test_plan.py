"""From the user's names to a cut model: defaults, fingerprints, class counts."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from edge_kit.errors import ExportError  # noqa: E402
from exporters.graph.plan import check_classes, fingerprint  # noqa: E402
from exporters.graph.trace import trace  # noqa: E402
from tests.support.export.tiny_nets import SHAPE, net  # noqa: E402

pytestmark = pytest.mark.export


@pytest.fixture
def traced():
    return trace(net("residual"), SHAPE)


def test_fingerprint_of_equal_models_is_equal(traced):
    again = trace(net("residual"), SHAPE)
    assert fingerprint(traced.module) == fingerprint(again.module)


@pytest.mark.parametrize("name", ["stem.0.weight", "block.two.1.running_var", "fc.bias"])
def test_fingerprint_changes_with_any_weight_or_statistic(traced, name):
    before = fingerprint(traced.module)
    with torch.no_grad():
        traced.module.state_dict()[name].view(-1)[0] += 1e-3
    assert fingerprint(traced.module) != before


def test_fingerprint_changes_with_graph_of_equal_weights(traced):
    other = trace(net("residual"), SHAPE).module
    relu = next(n for n in other.graph.nodes if str(n.target) == "block.one.2")
    with other.graph.inserting_after(relu):
        doubled = other.graph.call_function(torch.add, (relu, 0.0))
    relu.replace_all_uses_with(doubled, lambda user: user is not doubled)
    other.recompile()
    assert other.state_dict().keys() == traced.module.state_dict().keys()
    assert fingerprint(other) != fingerprint(traced.module)


def test_fingerprint_does_not_change_model(traced):
    before = copy.deepcopy(traced.module.state_dict())
    fingerprint(traced.module)
    assert all(torch.equal(before[k], v) for k, v in traced.module.state_dict().items())


def test_check_classes_of_equal_count_passes(traced):
    check_classes(traced, ("a", "b", "c", "d"))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a", "b"), r"has 4 classes, the photos have 2 class folders \(a, b\)"),
        (tuple("abcdefgh"), r"8 class folders \(a, b, c, d, e, f, \.\.\.\)"),
    ],
)
def test_check_classes_of_other_count_names_folders(traced, names, said):
    with pytest.raises(ExportError, match=said):
        check_classes(traced, names)
