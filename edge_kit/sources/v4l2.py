"""USB and other V4L2 cameras, read through OpenCV."""

from __future__ import annotations

import fcntl
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_kit.errors import SourceError
from edge_kit.sources.opencv import OpenCvCamera, load_cv2

__all__ = ["V4l2Camera", "V4l2Device", "list_devices"]

# VIDIOC_QUERYCAP and struct v4l2_capability: include/uapi/linux/videodev2.h
_QUERYCAP = 0x80685600
_CAPABILITY = struct.Struct("=16s32s32sIII12x")
_VIDEO_CAPTURE = 0x1
_DEVICE_CAPS = 0x80000000
# Nodes that say they capture yet give OpenCV nothing: codecs, the image signal processor, and the
# raw end of a Raspberry Pi's own camera, which only libcamera can drive.
_NO_CAMERA = ("bcm2835-codec", "bcm2835-isp", "unicam", "rp1-cfe", "pispbe", "rpi-hevc", "rpivid")


@dataclass(frozen=True)
class V4l2Device:
    """A device node that captures video.

    Attributes:
        path: Such as ``/dev/video0``.
        card: What the driver calls it.
        problem: Why it cannot be asked, such as ``Permission denied``; empty when it can.
    """

    path: str
    card: str
    problem: str = ""


def list_devices(dev: Path = Path("/dev")) -> list[V4l2Device]:
    """Return the nodes that capture video, by number; those that may not be opened included."""
    nodes = [p for p in dev.glob("video*") if p.name.removeprefix("video").isdigit()]
    devices = []
    for node in sorted(nodes, key=lambda p: int(p.name.removeprefix("video"))):
        try:
            driver, card, caps = _query(node)
        except OSError as error:
            devices.append(V4l2Device(str(node), "", error.strerror or str(error)))
            continue
        if caps & _VIDEO_CAPTURE and not driver.startswith(_NO_CAMERA):
            devices.append(V4l2Device(str(node), card))
    return devices


def _query(node: Path) -> tuple[str, str, int]:
    """Ask a node for driver, card and what it can do."""
    buffer = bytearray(_CAPABILITY.size)
    with node.open("rb", buffering=0) as file:
        fcntl.ioctl(file, _QUERYCAP, buffer)
    driver, card, _bus, _version, whole, device = _CAPABILITY.unpack(buffer)
    caps = device if whole & _DEVICE_CAPS else whole
    return driver.split(b"\0")[0].decode(), card.split(b"\0")[0].decode(errors="replace"), caps


class V4l2Camera(OpenCvCamera):
    """A V4L2 device.

    Args:
        device: Path of the node.
        cv2: OpenCV, or a stand-in; imported when None.

    Raises:
        MissingExtraError: OpenCV is not installed.
    """

    def __init__(self, device: str, cv2: Any = None) -> None:
        super().__init__(device, cv2 or load_cv2("a V4L2 camera"))

    def open(self) -> None:
        """Start it.

        Raises:
            SourceError: It is missing, busy, refused, or gives no picture.
        """
        self._check_node()
        self._capture = self._cv2.VideoCapture(self.name, self._cv2.CAP_V4L2)
        if not self._capture.isOpened():
            self.close()
            raise SourceError(
                f"{self.name} cannot be opened as a camera",
                "see whether another program uses it (fuser -v) or try another device",
            )
        # The fewer frames the driver keeps, the fresher is the next one; drivers may ignore it.
        self._capture.set(self._cv2.CAP_PROP_BUFFERSIZE, 1)

    def _check_node(self) -> None:
        try:
            with Path(self.name).open("rb", buffering=0):
                pass
        except FileNotFoundError:
            have = ", ".join(d.path for d in list_devices()) or "none"
            raise SourceError(
                f"there is no camera at {self.name}", f"cameras here: {have}"
            ) from None
        except PermissionError:
            raise SourceError(
                f"this user may not open {self.name}",
                "add it to the group 'video' and log in again",
            ) from None
        except OSError as error:
            raise SourceError(f"{self.name} cannot be opened ({error.strerror})") from None
