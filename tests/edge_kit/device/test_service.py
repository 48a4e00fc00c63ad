from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_kit.device.config import resolve
from edge_kit.device.output import JsonLines
from edge_kit.device.service import Service, choose_rule
from edge_kit.errors import BundleError, SourceError, UsageError


@pytest.fixture
def photo(tmp_path) -> Path:
    path = tmp_path / "red.png"
    Image.fromarray(np.full((16, 16, 3), (255, 0, 0), np.uint8)).save(path)
    return path


def service(**flags) -> tuple[Service, list[str], io.StringIO]:
    reports: list[str] = []
    stream = io.StringIO()
    config = resolve({"engine": "onnx"} | flags, {"HOME": "/nowhere"})
    return Service(config, JsonLines(stream), reports.append), reports, stream


def test_service_runs_a_photo_through_a_real_engine(tiny_bundle, photo, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ready, reports, stream = service(bundle=tiny_bundle.root, source=photo)
    summary = ready.run()
    assert (summary["run"]["frames"], summary["run"]["device"]) == (1, 1)
    assert summary["engine"] == "onnx" and summary["threshold"] == 0.5
    assert '"class":"red"' in stream.getvalue() and reports == []


def test_missing_file_is_an_error_that_names_it(tiny_bundle, photo, tmp_path):
    with pytest.raises(UsageError, match="no bundle is given"):
        service(source=photo)
    with pytest.raises(BundleError, match="there is no bundle"):
        service(bundle=tmp_path / "none", source=photo)
    with pytest.raises(UsageError, match="one source of frames"):
        service(bundle=tiny_bundle.root)
    with pytest.raises(SourceError, match="there is no"):
        service(bundle=tiny_bundle.root, source=tmp_path / "none")


def test_threshold_is_the_bundles_or_the_users_or_from_the_curve(tiny_bundle):
    assert choose_rule(tiny_bundle, None, None) == tiny_bundle.split.exit
    assert choose_rule(tiny_bundle, -1.0, None).threshold == -1.0
    # The tiny bundle's curve answers a share of T on the device.
    assert choose_rule(tiny_bundle, None, 0.3).threshold == pytest.approx(0.7)
    with pytest.raises(UsageError, match="not both"):
        choose_rule(tiny_bundle, 0.1, 0.3)
    with pytest.raises(UsageError, match="lies outside 0 to 1"):
        choose_rule(tiny_bundle, None, 7.0)
