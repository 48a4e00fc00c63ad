from __future__ import annotations

import subprocess
import sys


def test_recalibrate_imports_neither_torch_nor_onnx():
    code = (
        "import sys, exporters.cli, exporters.recalibrate\n"
        "print([m for m in ('torch', 'onnx', 'jax', 'litert_torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr
