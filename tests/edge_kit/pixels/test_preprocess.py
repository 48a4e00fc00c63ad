from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from edge_kit.bundle.manifest import Preprocessing
from edge_kit.errors import MissingExtraError
from edge_kit.pixels.preprocess import Preprocessor


def noise(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).integers(0, 256, (height, width, 3), np.uint8)


def halves(height: int, width: int, at: int) -> np.ndarray:
    """Red left of column `at`, blue from there on."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, :at, 0] = 255
    pixels[:, at:, 2] = 255
    return pixels


@pytest.mark.parametrize("resize", ["squash", "crop"])
@pytest.mark.parametrize("size", [(480, 640), (640, 480), (37, 201), (1, 1), (1080, 1920)])
def test_any_size_becomes_the_models(resize, size):
    out = Preprocessor(Preprocessing(width=24, height=16, resize=resize))(noise(*size))
    assert out.shape == (16, 24, 3)
    assert out.dtype == np.uint8


def test_right_size_passes_untouched():
    pixels = noise(16, 24)
    assert Preprocessor(Preprocessing(24, 16))(pixels) is pixels


def test_squash_keeps_both_edges():
    out = Preprocessor(Preprocessing(32, 32))(halves(100, 300, 150))
    assert (out[:, :15] == (255, 0, 0)).all()
    assert (out[:, 17:] == (0, 0, 255)).all()


def test_crop_keeps_the_centre_and_the_proportions():
    # 100 x 300 cropped to a square leaves columns 100 to 199; the edge at 120 lands at a fifth
    out = Preprocessor(Preprocessing(100, 100, resize="crop"))(halves(100, 300, 120))
    assert (out[:, :19] == (255, 0, 0)).all()
    assert (out[:, 21:] == (0, 0, 255)).all()


def test_crop_of_a_tall_image():
    pixels = halves(300, 100, 20).transpose(1, 0, 2)  # 100 x 300, red above
    out = Preprocessor(Preprocessing(50, 50, resize="crop"))(pixels.transpose(1, 0, 2))
    assert (out[:, :9] == (255, 0, 0)).all()


def test_shrinking_averages_instead_of_skipping():
    # a chequerboard of single pixels: skipping would give black or white, averaging gives grey
    board = np.indices((512, 512)).sum(axis=0) % 2 * 255
    pixels = np.repeat(board[:, :, None].astype(np.uint8), 3, axis=2)
    out = Preprocessor(Preprocessing(32, 32))(pixels)
    assert np.abs(out.astype(int) - 127).max() <= 2


@pytest.mark.parametrize("resize", ["squash", "crop"])
def test_resize_stays_close_to_plain_antialiased_resize(resize):
    """The quick shrink must not change what a model sees."""
    smooth = Image.fromarray(noise(12, 16)).resize((640, 480), Image.Resampling.BICUBIC)
    out = Preprocessor(Preprocessing(64, 48, resize=resize))(np.asarray(smooth))
    want = np.asarray(smooth.resize((64, 48), Image.Resampling.BILINEAR))
    assert np.abs(out.astype(int) - want.astype(int)).mean() < 2


def test_views_of_any_stride_are_read_right():
    pixels = noise(60, 80)
    prepare = Preprocessor(Preprocessing(20, 20))
    flipped = pixels[:, :, ::-1]
    np.testing.assert_array_equal(prepare(flipped), prepare(np.ascontiguousarray(flipped)))


@pytest.mark.parametrize(
    "pixels",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)],
)
def test_array_that_is_not_an_rgb_image_is_refused(pixels):
    with pytest.raises(ValueError, match="uint8"):
        Preprocessor(Preprocessing(2, 2))(pixels)


def test_without_opencv(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    prepare = Preprocessor(Preprocessing(8, 8))
    assert prepare(noise(8, 8)).shape == (8, 8, 3)
    with pytest.raises(MissingExtraError, match=r"edge-kit\[photos\]"):
        prepare(noise(9, 9))


def test_importing_sources_and_preprocessing_loads_nothing_heavy():
    code = (
        "import sys, edge_kit.pixels.preprocess, edge_kit.sources.open, edge_kit.engines.select;"
        "heavy = {'torch', 'cv2', 'PIL', 'onnxruntime', 'tflite_runtime', 'ai_edge_litert'};"
        "sys.exit(', '.join(heavy & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
