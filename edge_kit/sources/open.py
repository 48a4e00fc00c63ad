"""From what the user typed to a source."""

from __future__ import annotations

from pathlib import Path

from edge_kit.errors import SourceError, UsageError
from edge_kit.sources.camera import Camera, CameraSource
from edge_kit.sources.folder import FolderSource
from edge_kit.sources.live import LiveSource, PacedSource
from edge_kit.sources.photo import PHOTO_SUFFIXES, PhotoSource
from edge_kit.sources.picamera import PiCamera, connected_cameras, find_picamera2, why_no_picamera2
from edge_kit.sources.rtsp import SCHEMES, RtspCamera
from edge_kit.sources.source import Source
from edge_kit.sources.v4l2 import V4l2Camera, list_devices
from edge_kit.sources.video import VIDEO_SUFFIXES, VideoSource

__all__ = ["open_source"]


def open_source(
    *,
    camera: str | None = None,
    source: str | Path | None = None,
    fps: float | None = None,
    live: bool = False,
) -> Source:
    """Return the source that the flags name; nothing is read yet.

    Args:
        camera: ``--camera``: ``""`` or ``auto`` for the first camera of this board, a number, a
            device path, or an address such as ``rtsp://…``. None when the flag is absent.
        source: ``--source``: a photo, a folder of photos or a video file.
        fps: ``--fps``. For files the pace; for cameras at most so many frames a second.
        live: ``--live``: play files as a camera, which drops what comes too fast.

    Raises:
        UsageError: Not exactly one of the two is given, or `fps` is out of range.
        SourceError: There is no such file or camera.
        MissingExtraError: A package that reads this kind of source is not installed.
    """
    if (camera is None) == (source is None):
        raise UsageError("give one source of frames", "either --camera or --source PATH")
    if fps is not None and not 0 < fps <= 1000:
        raise UsageError(f"--fps {fps:g} is out of range", "give a number above 0, up to 1000")
    if camera is not None:
        return CameraSource(_open_camera(camera), fps)
    if live and fps is None:
        raise UsageError("--live needs a pace", "add --fps, for example --fps 30")
    try:
        files = _open_files(Path(str(source)))
    except OSError as error:
        raise SourceError(f"{source} cannot be read ({error.strerror})") from None
    if live:
        return LiveSource(files, fps)
    return PacedSource(files, fps) if fps else files


def _open_camera(spec: str) -> Camera:
    if spec in ("", "auto"):
        return _first_camera()
    if spec.isdigit():
        return V4l2Camera(f"/dev/video{spec}")
    if spec.partition("://")[0].lower() in SCHEMES:
        return RtspCamera(spec)
    if spec.startswith("/"):
        return V4l2Camera(spec)
    raise UsageError(
        f"--camera {spec} is not a camera",
        "give a number, a device such as /dev/video2, an rtsp:// address, or nothing",
    )


def _first_camera() -> Camera:
    """Return the Raspberry Pi camera when there is one, else the first V4L2 camera."""
    driver = find_picamera2()
    if connected_cameras(driver):
        return PiCamera(driver=driver)
    reason = "libcamera sees no camera" if driver is not None else why_no_picamera2()
    devices = list_devices()
    for device in devices:
        if not device.problem:
            return V4l2Camera(device.path)
    if devices:
        first = devices[0]
        raise SourceError(
            f"{first.path} cannot be opened ({first.problem})",
            "add this user to the group 'video' and log in again",
        )
    raise SourceError("this board has no V4L2 camera", f"for a Raspberry Pi camera: {reason}")


def _open_files(path: Path) -> Source:
    if path.is_dir():
        return FolderSource(path)
    if not path.exists():
        raise SourceError(f"there is no {path}", "check the path given with --source")
    suffix = path.suffix.lower()
    if suffix in PHOTO_SUFFIXES:
        return PhotoSource(path)
    if suffix in VIDEO_SUFFIXES:
        return VideoSource(path)
    kinds = ", ".join(sorted(PHOTO_SUFFIXES | VIDEO_SUFFIXES))
    raise SourceError(f"{path} is not a photo or video of a known kind", f"known are {kinds}")
