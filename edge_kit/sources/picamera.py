"""A Raspberry Pi's own camera, through picamera2 and libcamera.

Both come from Raspberry Pi OS (apt), not from PyPI, so a virtual environment sees them only when
it was made with ``--system-site-packages``.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_kit.errors import SourceError

__all__ = ["PiCamera", "connected_cameras", "find_picamera2", "why_no_picamera2"]

# libcamera names a format by its bits from high to low, so BGR888 lies in memory as R, G, B.
_FORMAT = "BGR888"
_SIZE = (640, 480)
_SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")


def find_picamera2() -> Any | None:
    """Return the ``picamera2.Picamera2`` class, or None when it cannot be imported."""
    if importlib.util.find_spec("picamera2") is None:
        return None
    try:
        return importlib.import_module("picamera2").Picamera2
    # It imports libcamera's bindings, which may be built for another Python: any error may come.
    except Exception as error:
        logging.getLogger(__name__).info("picamera2 is there and cannot be imported: %s", error)
        return None


def connected_cameras(driver: Any | None) -> list[str]:
    """Return the models that libcamera sees; empty without a driver or when it fails."""
    if driver is None:
        return []
    # libcamera's errors are RuntimeError, IndexError and its own, without a common base.
    try:
        return [str(info.get("Model", "unknown")) for info in driver.global_camera_info()]
    except Exception as error:
        logging.getLogger(__name__).info("libcamera cannot list its cameras: %s", error)
        return []


def why_no_picamera2(system: Path = _SYSTEM_PACKAGES) -> str:
    """Return a sentence that says why picamera2 is not used and what would change that."""
    if importlib.util.find_spec("picamera2") is not None:
        return "picamera2 is installed and cannot be imported; see python3 -c 'import picamera2'"
    in_venv = sys.prefix != sys.base_prefix
    if in_venv and any((system / name).is_dir() for name in ("picamera2", "libcamera")):
        return (
            "picamera2 is installed for the system and this virtual environment cannot see it; "
            "make it again with: python3 -m venv --system-site-packages"
        )
    return "picamera2 is not installed (on Raspberry Pi OS: sudo apt install python3-picamera2)"


class PiCamera:
    """The first camera that libcamera knows.

    Args:
        size: Width and height of the frames, pixels.
        driver: The ``Picamera2`` class, or a stand-in; imported when None.

    Raises:
        SourceError: picamera2 cannot be imported; the message says how to get it.
    """

    name = "Raspberry Pi camera"

    def __init__(self, size: Sequence[int] = _SIZE, driver: Any = None) -> None:
        self._driver: Any = driver or find_picamera2()
        if self._driver is None:
            raise SourceError("the Raspberry Pi camera cannot be used", why_no_picamera2())
        self._size = tuple(size)
        self._camera: Any = None
        self._request: Any = None

    def open(self) -> None:
        """Start it.

        Raises:
            SourceError: No camera is connected, or another program uses it.
        """
        if not connected_cameras(self._driver):
            raise SourceError("libcamera sees no camera", "check the ribbon cable")
        try:
            self._camera = self._driver()
            video = self._camera.create_video_configuration(
                main={"size": self._size, "format": _FORMAT}
            )
            self._camera.configure(video)
            self._camera.start()
        except Exception as error:  # see connected_cameras
            self.close()
            raise SourceError(
                f"the Raspberry Pi camera cannot be started ({error})",
                "see whether another program uses it",
            ) from None

    def grab(self) -> bool:
        """Wait for the next frame."""
        self._release()
        if self._camera is None:
            return False
        try:
            self._request = self._camera.capture_request()
        except Exception:  # any error here means that the camera is gone
            return False
        return self._request is not None

    def retrieve(self) -> NDArray[np.uint8] | None:
        """Copy the held frame."""
        image = self._request.make_array("main")
        self._release()
        return np.ascontiguousarray(image[:, :, :3], dtype=np.uint8)

    def close(self) -> None:
        """Stop it."""
        self._release()
        if self._camera is not None:
            camera, self._camera = self._camera, None
            try:
                camera.close()
            except Exception as error:  # it is being given up anyway
                logging.getLogger(__name__).debug("closing the camera failed: %s", error)

    def _release(self) -> None:
        """Give the frame's buffer back, or the camera runs out of them."""
        if self._request is not None:
            request, self._request = self._request, None
            request.release()
