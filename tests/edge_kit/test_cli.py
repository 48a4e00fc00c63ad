from __future__ import annotations

import subprocess
import sys

from edge_kit import __version__
from edge_kit.cli import cli
from edge_kit.terminal.command_line import run_group
from tests.support.labelled import add_reference
from tests.support.tiny import make_bundle
from tests.support.tiny_splits import make_bundle_with_two_splits


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


def test_version_is_printed(capsys):
    assert run_group(cli, "edge-kit", ["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_unknown_command_is_a_usage_error(capsys):
    assert run_group(cli, "edge-kit", ["fly"]) == 2
    assert "No such command 'fly'" in capsys.readouterr().err


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
    assert "is valid: tiny" in capsys.readouterr().out
    assert run_group(cli, "edge-kit", ["bundle", "verify", str(tmp_path / "none")]) == 3
    assert "there is no bundle" in capsys.readouterr().err


def test_bundle_show_lists_every_split_with_its_rule_costs_and_files(tmp_path, capsys):
    root = make_bundle_with_two_splits(tmp_path / "both").root
    (root / "tuning.json").write_text('{"split": "lite", "threshold": 0.25}')
    assert run_group(cli, "edge-kit", ["bundle", "show", str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    pool, lite = (i for i, line in enumerate(lines) if line.startswith("split "))
    assert "split 0 pool: 3 x 4 x 4 int8" in lines[pool] and "entropy <= 0.5" in lines[pool]
    assert "split 1 lite" in lines[lite] and "entropy <= -1" in lines[lite]
    assert lines[pool + 1] == "  costs: not measured"
    assert [line.split()[-1] for line in lines[lite + 2 : lite + 4]] == [
        "end/int8.tflite",
        "cloud/least.onnx",
    ]
    assert lines[-1] == "tuning: split lite, threshold 0.25"
