"""OpenCV where it is needed: imported late, quiet, and its BGR turned into RGB."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import MissingExtraError

__all__ = ["OpenCvCamera", "load_cv2", "to_rgb"]

_FFMPEG_QUIET = "-8"  # AV_LOG_QUIET, libavutil/log.h


def load_cv2(why: str) -> Any:
    """Import OpenCV.

    Args:
        why: What needs it, as the subject of a sentence.

    Raises:
        MissingExtraError: It is not installed.
    """
    # FFmpeg and OpenCV report each failed open on stderr, addresses included, besides returning
    # it; the sentence is ours to write. FFmpeg's level is read once, when it is first used.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", _FFMPEG_QUIET)
    try:
        import cv2
    except ImportError:
        raise MissingExtraError("opencv-python-headless", "camera", why) from None
    with contextlib.suppress(AttributeError):
        cv2.setLogLevel(0)
    return cv2


def to_rgb(cv2: Any, image: NDArray[Any]) -> NDArray[np.uint8]:
    """Return contiguous uint8 RGB from what OpenCV decoded: BGR, BGRA or grey."""
    if image.ndim == 2 or image.shape[2] == 1:
        code = cv2.COLOR_GRAY2RGB
    elif image.shape[2] == 4:
        code = cv2.COLOR_BGRA2RGB
    else:
        code = cv2.COLOR_BGR2RGB
    return np.asarray(cv2.cvtColor(image, code), dtype=np.uint8)


class OpenCvCamera:
    """What the cameras that OpenCV reads do alike; each opens in its own way."""

    def __init__(self, name: str, cv2: Any) -> None:
        self.name = name
        self._cv2 = cv2
        self._capture: Any = None

    def grab(self) -> bool:
        """Take the next frame off the driver without decoding it."""
        return self._capture is not None and bool(self._capture.grab())

    def retrieve(self) -> NDArray[np.uint8] | None:
        """Decode the held frame."""
        ok, image = self._capture.retrieve()
        return to_rgb(self._cv2, image) if ok and image is not None else None

    def close(self) -> None:
        """Stop it."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None
