from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from tests.support.tiny import make_bundle

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "device_overhead.py"


def run(tmp_path, *args):
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )


def test_benchmark_runs_every_stage(tmp_path):
    make_bundle(tmp_path / "bundle")
    (tmp_path / "photos").mkdir()
    for n, colour in enumerate([(255, 0, 0), (90, 90, 90), (0, 0, 255), (80, 90, 100)]):
        pixels = np.full((48, 64, 3), colour, np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{n}.png")
    args = ("--bundle", tmp_path / "bundle", "--photos", tmp_path / "photos", "--rounds", 2)
    done = run(tmp_path, *args, "--json")
    figures = json.loads(done.stdout)
    # The two pure colours stay, the two greys go; a model this small is all overhead.
    assert figures["device_share"] == 0.5
    assert done.returncode == 1
    assert figures["overhead_mixed"] > figures["budget"]
    assert set(figures["median_ms"]["device"]) == {"preprocess", "engine", "decide", "emit"}
    assert {"encode", "spool"} <= set(figures["median_ms"]["sent"])
    assert all(v >= 0 for way in figures["median_ms"].values() for v in way.values())


def test_benchmark_without_a_bundle_says_so(tmp_path):
    done = run(tmp_path, "--bundle", tmp_path / "none")
    assert done.returncode == 3
    assert "there is no bundle" in done.stderr
    assert "Traceback" not in done.stderr
