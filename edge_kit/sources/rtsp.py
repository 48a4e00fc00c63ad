"""Network cameras: RTSP and whatever else FFmpeg reads from an address."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import SourceError
from edge_kit.sources.opencv import load_cv2, to_rgb

__all__ = ["SCHEMES", "RtspCamera", "without_secrets"]

SCHEMES = ("rtsp", "rtsps", "http", "https")

_OPEN_MS = 10_000
_READ_MS = 5_000


def without_secrets(url: str) -> str:
    """Return `url` with user, password and query masked; for messages. It need not be valid."""
    address, asked, _query = url.partition("?")
    scheme, mark, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    _who, at, host = host.rpartition("@")
    who, query = "***@" if at else "", "?***" if asked else ""
    return f"{scheme}{mark}{who}{host}{slash}{path}{query}"


class RtspCamera:
    """A camera at an address.

    Args:
        url: Its address; user and password may be part of it and never show in a message.
        cv2: OpenCV, or a stand-in; imported when None.

    Raises:
        MissingExtraError: OpenCV is not installed.
    """

    def __init__(self, url: str, cv2: Any = None) -> None:
        self.name = without_secrets(url)
        self._url = url
        self._cv2 = cv2 or load_cv2("a network camera")
        self._capture: Any = None

    def open(self) -> None:
        """Connect, waiting 10 s at most.

        Raises:
            SourceError: Nothing answers, or it is no video.
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

    def grab(self) -> bool:
        """Wait for the next frame."""
        return self._capture is not None and bool(self._capture.grab())

    def retrieve(self) -> NDArray[np.uint8] | None:
        """Decode the held frame."""
        ok, image = self._capture.retrieve()
        return to_rgb(self._cv2, image) if ok and image is not None else None

    def close(self) -> None:
        """Disconnect."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None
