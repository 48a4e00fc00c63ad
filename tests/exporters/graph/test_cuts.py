"""Tracing and cutting: every test is a parity test on a tiny model."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from edge_kit.errors import ExportError, UsageError  # noqa: E402
from exporters.graph.cuts import choose, find_cuts, split  # noqa: E402
from exporters.graph.load import load_model, load_weights  # noqa: E402
from exporters.graph.trace import trace  # noqa: E402

pytestmark = pytest.mark.export
SHAPE = (3, 32, 32)


class Block(nn.Module):
    """Residual, with an expansion inside and an in-place activation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inputs
        self.expand = nn.Sequential(
            nn.Conv2d(inputs, wide, 1), nn.BatchNorm2d(wide), nn.ReLU6(True)
        )
        self.mix = nn.Conv2d(wide, wide, 3, stride, 1, groups=wide)
        self.project = nn.Sequential(nn.Conv2d(wide, outputs, 1), nn.BatchNorm2d(outputs))
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x):
        y = self.project(torch.relu(self.mix(self.expand(x))))
        return x + y if self.skip else y


class Net(nn.Module):
    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.ModuleList([Block(8, 8, 1), Block(8, 12, 2), Block(12, 12, 1)])
        self.fc = nn.Linear(12, classes)

    def forward(self, x):
        n = x.size(0)
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).view(n, -1))


class ShapeSteered(Net):
    def forward(self, x):
        if x.shape[2] > 16:
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
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.fc = nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(self.conv(x).mean((2, 3)) + x.mean((2, 3)))


def settle(model: nn.Module) -> nn.Module:
    """Give the norms statistics of their own, so that parity means something."""
    torch.manual_seed(0)
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(8, *SHAPE))
    return model.eval()


@pytest.fixture(scope="module")
def traced():
    return trace(settle(Net()), SHAPE)


def test_traced_model_gives_same_logits():
    model = settle(Net())
    batch = torch.randn(5, *SHAPE)
    with torch.no_grad():
        assert torch.allclose(trace(model, SHAPE)(batch), model(batch), atol=1e-5)


def test_halves_at_every_cut_compose_to_whole(traced):
    batch = torch.randn(3, *SHAPE)
    names = [c.name for c in find_cuts(traced)]
    assert "stem" in names
    assert {"blocks.0", "blocks.1"} <= set(names)
    for cut in find_cuts(traced):
        trunk, tail = split(traced, cut)
        with torch.no_grad():
            features = trunk(batch)
            assert tuple(features.shape[1:]) == cut.shape
            assert torch.equal(tail(features), traced(batch))


def test_cuts_inside_skip_connection_are_not_found(traced):
    inside = [c.name for c in find_cuts(traced) if c.name.startswith(("blocks.0.", "blocks.2."))]
    assert inside == []


def test_cut_macs_are_counted_and_ascend(traced):
    cuts = find_cuts(traced)
    stem = next(c for c in cuts if c.name == "stem")
    assert stem.macs_before == 3 * 8 * 9 * 16 * 16
    assert [c.macs_before for c in cuts] == sorted({c.macs_before for c in cuts})
    assert all(0 < c.macs_share < 1 for c in cuts)


def test_auto_within_budget_takes_deepest_of_smallest_cuts(traced):
    cuts = find_cuts(traced)
    assert choose(cuts, "auto", budget=1.0, channels=4).name == "blocks.2"
    assert choose(cuts, "auto", budget=cuts[0].macs_share, channels=4).name == "stem"
    with pytest.raises(ExportError, match=r"no cut has at most 1% .*stem"):
        choose(cuts, "auto", budget=0.01)


def test_auto_with_narrow_first_layer_cuts_deeper():
    cuts = find_cuts(trace(Widening().eval(), SHAPE))
    shares = {c.name: c.macs_share for c in cuts}
    assert shares["layers.0"] < 0.05
    assert 0.4 < shares["layers.2"] < 0.8
    assert choose(cuts, "auto", budget=0.8, channels=12).name == "layers.2"
    assert choose(cuts, "auto", budget=0.05, channels=12).name == "layers.0"


def test_cut_name_without_underscores_matches_and_unknown_name_lists_known(traced):
    cuts = find_cuts(traced)
    assert choose(cuts, "_blocks.1").name == "blocks.1"
    with pytest.raises(UsageError, match=r"no cut named 'layer9'.*blocks\.0"):
        choose(cuts, "layer9")


def test_tail_weights_changed_leave_model_unchanged(traced):
    _, tail = split(traced, choose(find_cuts(traced), "stem"))
    before = traced.module.state_dict()["fc.weight"].clone()
    with torch.no_grad():
        for p in tail.parameters():
            p.add_(1.0)
    assert torch.equal(traced.module.state_dict()["fc.weight"], before)


@pytest.mark.parametrize("layer", [nn.Hardswish(True), nn.Hardsigmoid()])
def test_hard_activation_is_rewritten_and_keeps_cut_name(layer):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Conv2d(4, 4, 3), nn.Flatten())
    model = nn.Sequential(model, nn.Linear(4 * 28 * 28, 3)).eval()
    found = trace(model, SHAPE)
    assert "hard" not in found.module.code
    assert find_cuts(found)[0].name == "0.1"
    batch = 4 * torch.randn(3, *SHAPE)
    with torch.no_grad():
        assert torch.allclose(found(batch), model(batch), atol=1e-5)


def test_adaptive_pool_gets_fixed_kernel(traced):
    code = traced.module.code
    assert "avg_pool2d" in code
    assert "adaptive" not in code


def test_shape_dependent_control_flow_uses_torch_export():
    model = settle(ShapeSteered())
    traced = trace(model, SHAPE)
    assert traced.method == "export"
    cut = choose(find_cuts(traced), "auto", budget=0.9)
    trunk, tail = split(traced, cut)
    batch = torch.randn(7, *SHAPE)
    with torch.no_grad():
        assert torch.allclose(tail(trunk(batch)), model(batch), atol=1e-5)


def test_value_dependent_control_flow_error_names_line(capfd):
    with pytest.raises(ExportError, match=r"test_cuts\.py:\d+: if x\.sum\(\) > 0"):
        trace(ValueSteered(), SHAPE)
    assert capfd.readouterr() == ("", "")


def test_optional_argument_keeps_its_default():
    model = settle(Optional())
    batch = torch.randn(3, *SHAPE)
    with torch.no_grad():
        assert torch.allclose(trace(model, SHAPE)(batch), model(batch), atol=1e-5)


def test_required_second_input_is_refused():
    with pytest.raises(ExportError, match=r"'mask'; it must take one tensor, a batch of images"):
        trace(TwoInputs().eval(), SHAPE)


def test_model_without_usable_cut_is_refused():
    with pytest.raises(ExportError, match="no usable cut"):
        find_cuts(trace(Spanned().eval(), SHAPE))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3)), r"shape \(2, 4, 30, 30\)"),
        (nn.Sequential(nn.Conv2d(4, 4, 3)), "fails on an input of 3 x 32 x 32"),
    ],
)
def test_model_without_logits_or_with_wrong_input_is_refused(model, said):
    with pytest.raises(ExportError, match=said):
        trace(model, SHAPE)


def test_error_does_not_name_exporter_lines():
    with pytest.raises(ExportError) as caught:
        trace(nn.Sequential(nn.Conv2d(4, 4, 3)), SHAPE)
    assert "exporters/" not in str(caught.value)


def write_module(folder: Path, monkeypatch, text: str) -> str:
    name = f"made_{zlib.crc32(f'{folder}{text}'.encode())}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_load_model_finds_factory_in_current_directory(tmp_path, monkeypatch):
    name = write_module(
        tmp_path, monkeypatch, "from torch import nn\ndef build():\n    return nn.Linear(2, 2)\n"
    )
    torch.save({"weight": torch.eye(2), "bias": torch.zeros(2)}, tmp_path / "w.pt")
    model = load_model(f"{name}:build", tmp_path / "w.pt")
    assert torch.equal(model.weight, torch.eye(2))
    assert not model.training


@pytest.mark.parametrize(
    ("text", "attribute", "kind", "said"),
    [
        ("x = 1\n", "build", UsageError, "has no 'build'"),
        ("x = 1\n", "x", UsageError, "neither a model nor a factory"),
        ("def build():\n    return 3\n", "build", UsageError, "int, which is no torch"),
        (
            "def build():\n    raise OSError('gone')\n",
            "build",
            ExportError,
            r"OSError: gone \(.*:2",
        ),
        ("def build(n):\n    return n\n", "build", ExportError, "without arguments fails"),
        ("import no_such_thing\n", "build", ExportError, "needs 'no_such_thing'"),
        ("1/0\n", "build", ExportError, r"ZeroDivisionError.*:1"),
    ],
)
def test_load_model_with_bad_factory_says_why(tmp_path, monkeypatch, text, attribute, kind, said):
    name = write_module(tmp_path, monkeypatch, text)
    with pytest.raises(kind, match=said):
        load_model(f"{name}:{attribute}")


@pytest.mark.parametrize("spec", ["nothing", ":f", "a:", "no_such_module_at_all:f"])
def test_load_model_with_bad_spec_is_usage_error(spec):
    with pytest.raises(UsageError):
        load_model(spec)


class Custom:
    """Pickles by reference: loading it would import and run code."""


def test_bad_weights_file_says_why(tmp_path):
    model = nn.Linear(2, 2)
    with pytest.raises(ExportError, match="no weights at"):
        load_weights(model, tmp_path / "missing.pt")
    (tmp_path / "junk.pt").write_bytes(b"junk" * 100)
    with pytest.raises(ExportError, match=r"junk\.pt"):
        load_weights(model, tmp_path / "junk.pt")
    torch.save(model.state_dict(), tmp_path / "cut.pt")
    whole = (tmp_path / "cut.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ExportError, match=r"cut\.pt"):
        load_weights(model, tmp_path / "cut.pt")
    torch.save(Custom(), tmp_path / "object.pt")
    with pytest.raises(ExportError, match="would run code"):
        load_weights(model, tmp_path / "object.pt")
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "wide.pt")
    with pytest.raises(ExportError, match=r"weight is \(2, 3\) in the file, \(2, 2\)"):
        load_weights(model, tmp_path / "wide.pt")
    torch.save({"weight": torch.eye(2), "extra": torch.eye(2)}, tmp_path / "keys.pt")
    with pytest.raises(ExportError, match=r"lacks bias and has extra"):
        load_weights(model, tmp_path / "keys.pt")


@pytest.mark.parametrize("wrap", ["plain", "state_dict", "model", "parallel"])
def test_wrapped_state_dict_loads(tmp_path, wrap):
    model, trained = nn.Linear(2, 2), nn.Linear(2, 2)
    state = trained.state_dict()
    if wrap == "parallel":
        state = {f"module.{k}": v for k, v in state.items()}
    elif wrap != "plain":
        state = {wrap: state, "epoch": 3}
    torch.save(state, tmp_path / "w.pt")
    load_weights(model, tmp_path / "w.pt")
    assert torch.equal(model.weight, trained.weight)
