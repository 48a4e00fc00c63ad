"""Loading the classifier that a user names, and its weights; what is wrong is said and where."""

from __future__ import annotations

import importlib
import sys
import zlib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from edge_kit.errors import ExportError, UsageError  # noqa: E402
from exporters.graph.load import blame, load_model, load_weights  # noqa: E402

pytestmark = pytest.mark.export


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


FACTORY = """
from torch import nn

class Zoo:
    @staticmethod
    def build():
        return nn.Linear(2, 2)

ready = nn.Linear(2, 2).train()
"""


@pytest.mark.parametrize("attribute", ["Zoo.build", "ready"])
def test_load_model_takes_nested_factory_or_finished_module(tmp_path, monkeypatch, attribute):
    model = load_model(f"{write_module(tmp_path, monkeypatch, FACTORY)}:{attribute}")
    assert isinstance(model, nn.Linear)
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())


def test_load_model_finds_module_inside_package(tmp_path, monkeypatch):
    name = write_module(tmp_path, monkeypatch, "")
    package = tmp_path / f"{name}_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(FACTORY)
    assert isinstance(load_model(f"{package.name}.models:ready"), nn.Linear)


@pytest.mark.parametrize(
    ("text", "attribute", "kind", "said"),
    [
        ("x = 1\n", "build", UsageError, "has no 'build'"),
        ("x = 1\n", "x", UsageError, "neither a model nor a factory"),
        ("def build():\n    return 3\n", "build", UsageError, "int, which is not a torch"),
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


def test_load_model_with_unknown_attribute_lists_public_names(tmp_path, monkeypatch):
    text = "def build():\n    pass\ndef train():\n    pass\n_hidden = 1\n"
    name = write_module(tmp_path, monkeypatch, text)
    with pytest.raises(UsageError, match="has no 'builder'") as caught:
        load_model(f"{name}:builder")
    assert "build, train" in caught.value.hint
    assert "_hidden" not in caught.value.hint


@pytest.mark.parametrize("spec", ["nothing", ":f", "a:", "no_such_module_at_all:f"])
def test_load_model_with_bad_spec_is_usage_error(spec):
    with pytest.raises(UsageError):
        load_model(spec)


def test_load_model_of_missing_module_names_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="'not_here_at_all'") as caught:
        load_model("not_here_at_all.models:build")
    assert str(tmp_path) in caught.value.what


def test_blame_names_last_line_of_user_code(tmp_path, monkeypatch):
    name = write_module(tmp_path, monkeypatch, "import torch\ndef f():\n    torch.eye(-1)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(name)
    with pytest.raises(RuntimeError) as caught:
        module.f()
    said = blame(caught.value)
    assert said.startswith("RuntimeError: ")
    assert said.endswith(f"{name}.py:3: torch.eye(-1))")


def test_blame_of_error_without_text_says_so():
    assert blame(ValueError()) == "ValueError: no message"


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


@pytest.mark.parametrize("content", [[torch.eye(2)], {"weight": 3}, {"state_dict": {"bias": "x"}}])
def test_weights_file_without_state_dict_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(ExportError, match="state dict") as caught:
        load_weights(nn.Linear(2, 2), tmp_path / "w.pt")
    assert "torch.save(model.state_dict(), path)" in caught.value.hint


def test_weights_with_many_missing_names_show_three_and_count_rest(tmp_path):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    torch.save({}, tmp_path / "w.pt")
    with pytest.raises(ExportError, match=r"lacks 0\.weight, 0\.bias, 1\.weight and 5 more"):
        load_weights(model, tmp_path / "w.pt")


def test_weights_that_do_not_fit_leave_model_unchanged(tmp_path):
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    torch.save({"weight": torch.eye(2), "bias": torch.zeros(3)}, tmp_path / "w.pt")
    with pytest.raises(ExportError, match="does not fit"):
        load_weights(model, tmp_path / "w.pt")
    assert torch.equal(model.weight, before)
