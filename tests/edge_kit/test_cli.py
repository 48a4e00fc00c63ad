from __future__ import annotations

import subprocess
import sys

import click
import pytest

from edge_kit import __version__
from edge_kit import cli as cli_module
from edge_kit.cli import cli, run_group
from edge_kit.errors import SpoolError
from tests.support.labelled import add_reference
from tests.support.tiny import make_bundle


def test_help_lists_every_command_without_importing_them():
    code = (
        "import sys; from edge_kit.cli import cli, run_group; "
        "rc = run_group(cli, 'edge-kit', ['--help']); "
        "bad = {'torch', 'paho', 'onnxruntime', 'exporters', 'PIL'} & set(sys.modules); "
        "sys.exit(f'imported {bad}' if bad else rc)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("run", "doctor", "demo", "bundle", "export"):
        assert f"\n  {name} " in done.stdout


def test_version(capsys):
    assert run_group(cli, "edge-kit", ["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_an_unknown_command_is_a_usage_error(capsys):
    assert run_group(cli, "edge-kit", ["fly"]) == 2
    assert "No such command 'fly'" in capsys.readouterr().err


def test_a_built_in_command_that_is_not_there_yet_is_not_listed(monkeypatch):
    monkeypatch.setitem(cli_module._BUILT_IN, "teleport", "Not yet.")
    context = click.Context(cli)
    assert "teleport" not in cli.list_commands(context)
    assert cli.get_command(context, "teleport") is None


class FakePlugin:
    name = "export"
    module = "exporters.cli"

    def load(self):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")


def test_a_command_whose_package_is_missing_names_the_extra(monkeypatch, capsys):
    monkeypatch.setattr(cli_module, "_plugins", lambda: {"export": FakePlugin()})
    assert run_group(cli, "edge-kit", ["export", "--help"]) == 4
    error = capsys.readouterr().err
    assert error.startswith("edge-kit: error: edge-kit export needs torch")
    assert "pip install 'edge-kit[export]'" in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (SpoolError("the disk is full", "free some space"), 7, "x: error: the disk is full; free"),
        (KeyboardInterrupt(), 130, ""),
        (click.UsageError("what?"), 2, "what?"),
        (OSError(28, "No space left on device", "/there"), 1, "No space left on device: '/there'"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_errors_become_sentences_and_exit_codes(raised, code, text, capsys):
    @click.command()
    def fail() -> None:
        raise raised

    assert run_group(fail, "x", []) == code
    error = capsys.readouterr().err
    assert text in error and "Traceback" not in error


def test_a_broken_pipe_ends_quietly():
    command = f"{sys.executable} -m edge_kit.cli run --help | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def test_output_that_cannot_be_written_gets_a_sentence():
    command = f"{sys.executable} -m edge_kit.cli --version > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "edge-kit: error: [Errno 28] No space left on device\n"


def test_bundle_show_verify_and_pack(tiny_bundle, tmp_path, capsys):
    root = str(tiny_bundle.root)
    assert run_group(cli, "edge-kit", ["bundle", "show", root]) == 0
    shown = capsys.readouterr().out
    assert "tiny, model " in shown and "red, green, blue" in shown and "end/any.onnx" in shown
    assert "reference set" not in shown
    labelled = add_reference(make_bundle(tmp_path / "labelled"))
    assert run_group(cli, "edge-kit", ["bundle", "show", str(labelled.root)]) == 0
    assert "reference set: 3 labelled photos of the test split, set " in capsys.readouterr().out
    packed = tmp_path / "tiny.ekb"
    assert run_group(cli, "edge-kit", ["bundle", "pack", root, str(packed)]) == 0
    assert packed.stat().st_size > 0
    assert run_group(cli, "edge-kit", ["bundle", "verify", root]) == 0
    assert "is sound: tiny" in capsys.readouterr().out
    assert run_group(cli, "edge-kit", ["bundle", "verify", str(tmp_path / "none")]) == 3
    assert "there is no bundle" in capsys.readouterr().err
