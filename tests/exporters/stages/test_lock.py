"""Two exports in one work folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
pytest.importorskip("litert_torch")
from exporters.cli import export
from tests.support.export import shapes

pytestmark = [pytest.mark.export, pytest.mark.slow]

# An export that stops in its first stage until it is killed.
FIRST = """
import sys, time
from pathlib import Path
from exporters.config import DataConfig, ExportConfig, ModelConfig, OutputConfig
from exporters.pipeline import export

class Waiting:
    def say(self, text): pass
    def step(self, stage, done, total): print(stage, flush=True); time.sleep(600)

data, out = map(Path, sys.argv[1:])
model = ModelConfig("tests.support.export.shapes:build", size=32)
export(ExportConfig(DataConfig(data), model, OutputConfig(out)), Waiting())
"""


def run(data: Path, out: Path) -> str:
    arguments = ["tests.support.export.shapes:build", "--size", "32", "--cut", "nowhere"]
    done = CliRunner().invoke(export, [*arguments, "--data", str(data), "--out", str(out)])
    return f"{getattr(done.exception, 'exit_code', None)} {done.exception}"


def test_second_export_names_the_owner_until_that_is_killed(tmp_path):
    data, out = tmp_path / "data", tmp_path / "bundle"
    shapes.write_photos(data, train=1, held=1)
    command = [sys.executable, "-c", FIRST, str(data), str(out)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None and first.stdout.readline() == "photos\n"
        mark = (tmp_path / "bundle.work" / "photos" / "stage.json").read_bytes()
        refused = run(data, out)
        assert refused.startswith(f"9 another export works in {out}.work: process {first.pid} on ")
        assert "wait until it ends, stop it, or choose another --out" in refused
        assert (tmp_path / "bundle.work" / "photos" / "stage.json").read_bytes() == mark
    finally:
        first.kill()
        first.communicate()
    assert "no cut named 'nowhere'" in run(data, out)
