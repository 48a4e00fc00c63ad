"""A disk that fills during an export is named as such, whatever was being written."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from edge_kit.bundle.manifest import Preprocessing  # noqa: E402
from edge_kit.errors import ExportError  # noqa: E402
from exporters.data.features import FeatureTask, compute_features  # noqa: E402
from exporters.engines.onnx_export import trace_to_onnx  # noqa: E402
from exporters.progress import SilentProgress  # noqa: E402
from exporters.stages.workspace import Workspace  # noqa: E402

pytestmark = pytest.mark.export


def full(*arguments, **named):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def reason(tmp_path, make) -> str:
    with pytest.raises(ExportError) as caught:
        Workspace(tmp_path, SilentProgress()).run("work", {}, make)
    assert "finished stages are kept" in caught.value.hint
    return caught.value.what


def test_full_disk_fails_before_features_are_mapped(tmp_path, monkeypatch):
    """A write to mapped memory that finds no room would end the process by SIGBUS."""
    rule = Preprocessing(4, 4, "squash", "RGB", (0.0,) * 3, (1.0,) * 3)
    photos = (tmp_path / "a.jpg",)
    task = FeatureTask(tmp_path / "t.onnx", photos, rule, (3, 4, 4), tmp_path / "work", 0, 0)
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert "No space left" in reason(tmp_path, lambda folder: compute_features(task))
    assert not task.progress(0).exists()


def test_full_disk_in_converter_is_not_an_export_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.onnx, "export", full)
    said = reason(
        tmp_path,
        lambda folder: trace_to_onnx(
            torch.nn.Identity(), torch.zeros(1), folder / "x.onnx", outputs=("y",)
        ),
    )
    assert "No space left" in said
    assert "cannot export" not in said


def test_short_numpy_write_names_byte_counts(tmp_path, monkeypatch):
    def short(path, array):
        raise OSError("100 requested and 10 written")

    monkeypatch.setattr(np, "save", short)
    said = reason(tmp_path, lambda folder: np.save(folder / "x.npy", np.zeros(3)))
    assert "not all could be written (100 requested and 10 written)" in said
