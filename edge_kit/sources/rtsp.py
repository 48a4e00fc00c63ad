"""Network cameras: RTSP and whatever else FFmpeg reads from an address."""

from __future__ import annotations

from typing import Any

from edge_kit.errors import SourceError
from edge_kit.masking import mask_address
from edge_kit.sources.opencv import OpenCvCamera, load_cv2

__all__ = ["SCHEMES", "RtspCamera"]

SCHEMES = ("rtsp", "rtsps", "http", "https")

_OPEN_MS = 10_000
_READ_MS = 5_000


class RtspCamera(OpenCvCamera):
    """A camera at an address.

    Args:
        url: Its address; user and password may be part of it and never show in a message.
        cv2: OpenCV, or a stand-in; imported when None.

    Raises:
        MissingExtraError: OpenCV is not installed.
    """

    def __init__(self, url: str, cv2: Any = None) -> None:
        super().__init__(mask_address(url), cv2 or load_cv2("a network camera"))
        self._url = url

    def open(self) -> None:
        """Connect, waiting 10 s at most.

        Raises:
            SourceError: Nothing answers, or it is not a video.
        """
        cv2 = self._cv2
        limits = [
            cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, _OPEN_MS,
            cv2.CAP_PROP_READ_TIMEOUT_MSEC, _READ_MS,
        ]  # fmt: skip
        self._capture = cv2.VideoCapture(self._url, cv2.CAP_FFMPEG, limits)
        if not self._capture.isOpened():
            self.close()
            raise SourceError(
                f"no video comes from {self.name}",
                "check address, user and password, and that this machine reaches it",
            )
