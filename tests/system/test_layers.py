"""What may import what, and what importing the device must not load."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {
    "torch", "jax", "onnx", "onnxruntime", "tflite_runtime", "ai_edge_litert",
    "PIL", "cv2", "jinja2", "cloud_kit", "exporters", "boards", "picamera2",
}  # fmt: skip


def loaded_by(module: str) -> set[str]:
    """Return the top-level modules that importing `module` alone in a new process loads."""
    code = f"import {module}, json, sys; print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return {name.split(".")[0] for name in json.loads(done.stdout)}


@pytest.mark.parametrize(
    "module",
    ["edge_kit", "edge_kit.cli", "edge_kit.device.loop", "edge_kit.engines", "edge_kit.sources"],
)
def test_importing_the_device_loads_nothing_heavy(module):
    assert loaded_by(module) & HEAVY == set()


def test_importing_the_base_loads_numpy_and_no_other_package():
    loaded = loaded_by("edge_kit")
    assert "numpy" in loaded
    assert loaded & {"paho", "click", "ssl", "sqlite3", "asyncio"} == set()


def test_heavy_packages_are_installed_here():
    # Otherwise the tests above could not fail.
    assert {n for n in ("onnxruntime", "PIL", "cloud_kit") if importlib.util.find_spec(n)} == {
        "onnxruntime", "PIL", "cloud_kit",
    }  # fmt: skip


def lint_imports(config: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports_command as c; c()"
    return subprocess.run(
        [sys.executable, "-c", code, "--no-cache", str(config)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def test_onnxruntime_leaves_no_id_in_the_home_folder(tmp_path, tiny_bundle):
    code = (
        "import sys, edge_kit; from edge_kit.engines.load import load_engine; "
        "b = edge_kit.Bundle.open(sys.argv[1]); load_engine(b, b.end_files()[0], 1)"
    )
    env = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, str(tiny_bundle.root)], env=env, check=True)
    assert list(tmp_path.iterdir()) == []


def test_import_contracts_hold():
    done = lint_imports(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stdout
    assert " 0 broken" in done.stdout


def test_import_contract_notices_a_reversed_layer(tmp_path):
    config = tmp_path / "pyproject.toml"
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    # The base imports errors, so errors above the command line breaks the first contract.
    moved = text.replace('  "errors",\n', "", 1).replace('  "cli",\n', '  "errors",\n  "cli",\n', 1)
    config.write_text(moved, encoding="utf-8")
    done = lint_imports(config)
    assert done.returncode == 1
    assert "The layers of edge_kit BROKEN" in done.stdout
