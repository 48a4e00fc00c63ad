"""A video file."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from edge_kit.errors import SourceError
from edge_kit.sources.opencv import load_cv2, to_rgb
from edge_kit.sources.source import Frame

__all__ = ["VIDEO_SUFFIXES", "VideoSource"]

VIDEO_SUFFIXES = frozenset({".mp4", ".avi", ".mkv", ".mov", ".webm", ".m4v", ".mpg", ".mjpeg"})


class VideoSource:
    """Yield every frame of a video file, as fast as it is read.

    Raises:
        MissingExtraError: OpenCV is not installed.
    """

    live = False
    dropped = 0
    skipped = 0

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path
        self._cv2 = load_cv2("reading a video")
        self._closed = False

    def frames(self) -> Iterator[Frame]:
        """Yield the frames.

        Raises:
            SourceError: The file is missing or holds no video that OpenCV can decode.
        """
        if not self._path.is_file():
            raise SourceError(f"there is no video at {self._path}", "check the path")
        capture = self._cv2.VideoCapture(str(self._path))
        try:
            index = 0
            while not self._closed:
                ok, image = capture.read()
                if not ok:
                    break
                pixels = to_rgb(self._cv2, image)
                yield Frame(pixels, time.time(), index, f"{self._path.name}#{index}")
                index += 1
            if not index and not self._closed:
                raise SourceError(
                    f"{self._path} holds no video that OpenCV can decode",
                    "convert it, for example to H.264 in MP4",
                )
        finally:
            capture.release()

    def close(self) -> None:
        """End before the next frame."""
        self._closed = True
