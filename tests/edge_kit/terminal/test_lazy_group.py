from __future__ import annotations

import sys

import click
import pytest

from edge_kit.terminal.command_line import run_group
from edge_kit.terminal.lazy_group import Entry, LazyGroup


@pytest.fixture
def group(tmp_path, monkeypatch):
    (tmp_path / "lazily.py").write_text(
        "import click\n@click.command()\ndef greet():\n    click.echo('hello')\n"
    )
    (tmp_path / "needy.py").write_text("import no_such_torch.nn\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield LazyGroup(
        "main",
        entries={"greet": Entry("lazily:greet", "Say hello.")},
        plugins=lambda: {"train": Entry("needy:train", "From needy.", "export")},
    )
    sys.modules.pop("lazily", None)


def test_help_lists_commands_without_importing_them(group, capsys):
    assert run_group(group, "x", ["--help"]) == 0
    said = capsys.readouterr().out
    assert "greet  Say hello.\n" in said and "train  From needy.\n" in said
    assert "lazily" not in sys.modules


def test_called_command_is_imported_and_run(group, capsys):
    assert run_group(group, "x", ["greet"]) == 0
    assert capsys.readouterr().out == "hello\n"


def test_plugins_are_not_searched_for_an_own_command(group):
    group._plugins = lambda: pytest.fail("searched")
    assert group.get_command(click.Context(group), "greet") is not None


def test_unknown_command_is_none(group):
    assert group.get_command(click.Context(group), "fly") is None


def test_command_whose_package_is_missing_names_the_extra(group, capsys):
    assert run_group(group, "edge-kit", ["train", "--help"]) == 4
    error = capsys.readouterr().err
    assert error.startswith("edge-kit: error: edge-kit train needs no_such_torch")
    assert "pip install 'edge-kit[export]'" in error and error.count("\n") == 1
