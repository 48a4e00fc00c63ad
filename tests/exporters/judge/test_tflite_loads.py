"""The gate that loads a TFLite file in every runtime, with runtimes of our own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from edge_kit.bundle.manifest import EngineFile
from exporters.engines.exported import Exported
from exporters.judge import tflite_loads as module
from exporters.judge.tflite_loads import RUNTIMES, tflite_loads
from tests.support import tiny_tflite

pytestmark = pytest.mark.export

RUNTIME = """
import os, signal, sys, time
import numpy as np

class Interpreter:
    def __init__(self, model_path, num_threads):
        assert num_threads == 1
        self.content = open(model_path, "rb").read()

    def get_signature_runner(self):
        {start}
        return self

    def get_input_details(self):
        return {{"image": {{"shape": (1, 4, 4, 3), "dtype": np.int8}}}}

    def __call__(self, image):
        assert image.shape == (1, 4, 4, 3) and image.dtype == np.int8
        return {{name: image for name in {outputs}}}
"""


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """Write a runtime that a child process can import; return a gate's answer on it."""
    file = tmp_path / "end.tflite"
    file.write_bytes(tiny_tflite.FILE.read_bytes())
    entry = EngineFile("end/end.tflite", "end", "tflite", "any", "0" * 64, 1, 0, (), ())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def answer(start: str = "pass", outputs: tuple[str, ...] = ("features", "logits")):
        name = f"runtime{len(list(tmp_path.iterdir()))}"
        text = RUNTIME.format(start=start, outputs=outputs)
        (tmp_path / f"{name}.py").write_text(text)
        (gate,) = tflite_loads(Exported(file, entry), {"OurLite": name})
        return gate

    return answer


def test_runtime_that_runs_the_file_passes(runtime):
    gate = runtime()
    assert (gate.ok, gate.measured, gate.budget) == (True, 1.0, 1.0)
    assert gate.name == "OurLite loads the TFLite file"
    assert gate.sentence == "OurLite loads and runs the file"


@pytest.mark.parametrize(
    ("start", "outputs", "said"),
    [
        ("raise ValueError('op CUMSUM 2 is unknown')", ("logits",), "op CUMSUM 2 is unknown"),
        ("pass", ("logits",), "['logits']"),
        ("pass", ("features", "logits", "more"), "more"),
        ("os.kill(os.getpid(), signal.SIGILL)", (), "died with 4"),
        ("os._exit(3)", (), "died with"),
    ],
    ids=["raises", "one-output", "three-outputs", "signal", "silent"],
)
def test_runtime_that_fails_says_why(runtime, start, outputs, said):
    gate = runtime(start, outputs)
    assert (gate.ok, gate.measured) == (False, 0.0)
    assert gate.sentence.startswith("OurLite cannot run the file: ")
    assert said in gate.sentence


def test_runtime_that_hangs_fails_after_the_limit(runtime, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_S", 1)
    gate = runtime("time.sleep(60)")
    assert gate.ok is False
    assert gate.sentence == "OurLite took over 1 s to run the file once"


@pytest.mark.parametrize("name", ["no_such_runtime", "no_such_package.interpreter"])
def test_runtime_that_is_missing_is_not_checked(name):
    file = Exported(Path("unread.tflite"), None)  # type: ignore[arg-type]
    (gate,) = tflite_loads(file, {"FutureLite": name})
    assert (gate.ok, gate.measured) == (None, None)
    assert gate.sentence == "FutureLite is not installed for this Python: not checked"


def test_device_runtimes_are_checked_by_default(monkeypatch):
    monkeypatch.setattr(module, "_installed", lambda name: False)
    file = Exported(Path("unread.tflite"), None)  # type: ignore[arg-type]
    assert [g.name.split()[0] for g in tflite_loads(file)] == list(RUNTIMES)


def test_runtime_runs_outside_this_process(runtime):
    assert runtime("sys.modules['leaked_into_test'] = sys").ok
    assert "leaked_into_test" not in sys.modules
