"""Bundles and photos that the tests of the benchmark share."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.labelled import add_reference
from tests.support.tiny_tflite import make_bundle_with_both


@pytest.fixture(scope="session")
def both(tmp_path_factory):
    """Return a bundle with an ONNX and a TFLite end model."""
    return make_bundle_with_both(tmp_path_factory.mktemp("both") / "bundle")


@pytest.fixture(scope="session")
def labelled(tmp_path_factory):
    """Return such a bundle with three labelled photos, of which two are answered rightly."""
    return add_reference(make_bundle_with_both(tmp_path_factory.mktemp("labelled") / "bundle"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Return a folder for each class with one photo; the one in "blue" is red."""
    from PIL import Image

    root = tmp_path_factory.mktemp("classes")
    for name, colour in (("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (250, 5, 5))):
        (root / name).mkdir()
        Image.fromarray(np.full((48, 64, 3), colour, np.uint8)).save(root / name / "0.png")
    return root
