from __future__ import annotations

import struct
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edge_kit.errors import MissingExtraError, SourceError
from edge_kit.masking import mask_address
from edge_kit.sources import open as open_module
from edge_kit.sources import picamera as picamera_module
from edge_kit.sources import v4l2 as v4l2_module
from edge_kit.sources.open import open_source
from edge_kit.sources.picamera import PiCamera, why_no_picamera2
from edge_kit.sources.rtsp import RtspCamera
from edge_kit.sources.v4l2 import V4l2Camera, V4l2Device, list_devices
from tests.edge_kit.sources.test_camera_source import write_video
from tests.edge_kit.sources.test_sources import BLUE, RED, is_colour, plain

cv2 = pytest.importorskip("cv2")

# V4L2 and RTSP through a stand-in for OpenCV


def fake_cv2(frames, opened=True, log=None):
    """What this code uses of cv2, with a camera that gives BGR like a real one."""

    class Capture:
        def __init__(self, *args):
            (log if log is not None else []).append(args)
            self.frames = [np.ascontiguousarray(f[..., ::-1]) for f in frames]
            self.now = None

        def isOpened(self):  # noqa: N802 - OpenCV's name
            return opened

        def set(self, *_args):
            return False

        def grab(self):
            self.now = self.frames.pop(0) if self.frames else None
            return self.now is not None

        def retrieve(self):
            return self.now is not None, self.now

        def release(self):
            pass

    names = ("CAP_V4L2", "CAP_FFMPEG", "CAP_PROP_BUFFERSIZE", "CAP_PROP_OPEN_TIMEOUT_MSEC")
    names += ("CAP_PROP_READ_TIMEOUT_MSEC", "COLOR_BGR2RGB", "COLOR_GRAY2RGB", "COLOR_BGRA2RGB")
    return SimpleNamespace(
        VideoCapture=Capture, cvtColor=cv2.cvtColor, **{n: getattr(cv2, n) for n in names}
    )


@pytest.mark.parametrize("colour", [RED, BLUE])
def test_v4l2_has_its_colours(tmp_path, colour):
    node = tmp_path / "video0"
    node.touch()
    camera = V4l2Camera(str(node), fake_cv2([plain(colour)]))
    camera.open()
    assert camera.grab()
    assert is_colour(camera.retrieve(), colour)
    assert not camera.grab()
    camera.close()
    camera.close()
    assert not camera.grab()


@pytest.mark.parametrize("colour", [RED, BLUE])
def test_rtsp_has_its_colours(colour):
    log = []
    camera = RtspCamera("rtsp://me:secret@cam.local/live", fake_cv2([plain(colour)], log=log))
    camera.open()
    assert camera.grab()
    assert is_colour(camera.retrieve(), colour)
    assert log[0][0] == "rtsp://me:secret@cam.local/live"
    camera.close()


def test_rtsp_password_shows_in_no_message():
    camera = RtspCamera("rtsp://me:secret@cam.local/live", fake_cv2([], opened=False))
    assert camera.name == "rtsp://***@cam.local/live"
    with pytest.raises(SourceError) as info:
        camera.open()
    assert "secret" not in str(info.value)
    assert mask_address("rtsp://cam.local/live@1") == "rtsp://cam.local/live@1"
    assert mask_address("http://cam/mjpg?user=me&pwd=secret") == "http://cam/mjpg?***"
    assert mask_address("rtsp://me:secret@[broken/live") == "rtsp://***@[broken/live"
    assert mask_address("/dev/video0") == "/dev/video0"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_args):
        pass


def test_real_opencv_at_a_closed_port_is_an_error():
    # port 1 of the loopback refuses at once
    with pytest.raises(SourceError, match="no video comes from"):
        RtspCamera("rtsp://127.0.0.1:1/x").open()


def test_network_camera_through_real_opencv(tmp_path):
    write_video(tmp_path / "cam.avi", [RED, BLUE])
    handler = partial(Quiet, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        camera = RtspCamera(f"http://127.0.0.1:{server.server_port}/cam.avi")
        camera.open()
        try:
            for colour in (RED, BLUE):
                assert camera.grab()
                assert is_colour(camera.retrieve(), colour)
            assert not camera.grab()
        finally:
            camera.close()
            server.shutdown()


def test_v4l2_node_that_is_missing_or_not_a_camera_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="there is no camera at"):
        V4l2Camera("/dev/video987", fake_cv2([])).open()
    (tmp_path / "video0").touch()
    with pytest.raises(SourceError, match="cannot be opened as a camera"):
        V4l2Camera(str(tmp_path / "video0"), fake_cv2([], opened=False)).open()


def test_camera_without_opencv(monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    for make in (lambda: V4l2Camera("/dev/video0"), lambda: RtspCamera("rtsp://x/")):
        with pytest.raises(MissingExtraError, match=r"edge-kit\[camera\]"):
            make()


def test_devices_are_asked_what_they_can(tmp_path, monkeypatch):
    for number in (0, 2, 10, 11):
        (tmp_path / f"video{number}").touch()
    (tmp_path / "video").touch()
    answers = {
        "video0": ("unicam", "unicam", 0x84200001, 0x04200001),
        "video2": ("uvcvideo", "USB Camera", 0x84A00001, 0x04200001),
        "video10": ("bcm2835-codec", "codec", 0x84204000, 0x04204000),
        "video11": ("uvcvideo", "USB Camera metadata", 0x84A00001, 0x04A00000),
    }

    def ioctl(file, request, buffer):
        assert request == 0x80685600
        driver, card, whole, device = answers[Path(file.name).name]
        buffer[:] = struct.pack(
            "=16s32s32sIII12x", driver.encode(), card.encode(), b"usb", 1, whole, device
        )

    monkeypatch.setattr(v4l2_module.fcntl, "ioctl", ioctl)
    assert list_devices(tmp_path) == [V4l2Device(str(tmp_path / "video2"), "USB Camera")]


def test_node_that_cannot_be_asked_is_listed_with_its_problem(tmp_path):
    (tmp_path / "video0").touch()  # a plain file knows no ioctl
    (device,) = list_devices(tmp_path)
    assert device.problem


# the Raspberry Pi camera through a stand-in for picamera2


def fake_picamera2(scene, cameras=1, fail=""):
    """Picamera2's part that is used; like libcamera it names formats by bits, not by bytes."""

    class Request:
        def __init__(self, layout):
            self.layout = layout
            Picamera2.out += 1

        def make_array(self, stream):
            assert stream == "main"
            return scene if self.layout == "BGR888" else np.ascontiguousarray(scene[:, :, ::-1])

        def release(self):
            Picamera2.out -= 1

    class Picamera2:
        out = 0
        gone = False

        @staticmethod
        def global_camera_info():
            return [{"Model": "imx708"}] * cameras

        def __init__(self):
            if fail:
                raise RuntimeError(fail)

        def create_video_configuration(self, main):
            return main

        def configure(self, main):
            self.layout = main["format"]

        def start(self):
            pass

        def capture_request(self):
            if Picamera2.gone:
                raise RuntimeError("camera frontend timed out")
            assert Picamera2.out == 0, "a buffer was not given back"
            return Request(self.layout)

        def close(self):
            pass

    return Picamera2


@pytest.mark.parametrize("colour", [RED, BLUE])
def test_picamera_has_its_colours(colour):
    driver = fake_picamera2(plain(colour))
    camera = PiCamera(driver=driver)
    camera.open()
    for _ in range(3):
        assert camera.grab()  # frames nobody decodes are given back too
    assert is_colour(camera.retrieve(), colour)
    assert driver.out == 0
    driver.gone = True
    assert not camera.grab()
    camera.close()
    camera.close()


def test_picamera_troubles_are_sentences(monkeypatch):
    with pytest.raises(SourceError, match="ribbon"):
        PiCamera(driver=fake_picamera2(plain(RED), cameras=0)).open()
    with pytest.raises(SourceError, match="another program"):
        PiCamera(driver=fake_picamera2(plain(RED), fail="device busy")).open()
    monkeypatch.setattr(picamera_module, "find_picamera2", lambda: None)
    with pytest.raises(SourceError, match="picamera2"):
        PiCamera()


def test_venv_that_cannot_see_libcamera_is_told(tmp_path, monkeypatch):
    (tmp_path / "libcamera").mkdir()
    monkeypatch.setattr(sys, "prefix", "/home/pi/.venv")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    assert "--system-site-packages" in why_no_picamera2(tmp_path)
    assert "apt install python3-picamera2" in why_no_picamera2(tmp_path / "empty")
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert "--system-site-packages" not in why_no_picamera2(tmp_path)


# --camera


def test_camera_flags(monkeypatch):
    monkeypatch.setattr(open_module, "V4l2Camera", lambda path: SimpleNamespace(name=path))
    monkeypatch.setattr(open_module, "RtspCamera", lambda url: SimpleNamespace(name=url))
    assert open_source(camera="2").name == "/dev/video2"
    assert open_source(camera="/dev/video4").name == "/dev/video4"
    assert open_source(camera="rtsp://cam/1").name == "rtsp://cam/1"
    assert open_source(camera="2").live


def test_camera_alone_prefers_the_raspberry_pis(monkeypatch):
    devices = [V4l2Device("/dev/video1", "", "Permission denied"), V4l2Device("/dev/video3", "")]
    monkeypatch.setattr(open_module, "list_devices", lambda: devices)
    monkeypatch.setattr(open_module, "V4l2Camera", lambda path: SimpleNamespace(name=path))
    monkeypatch.setattr(open_module, "find_picamera2", lambda: fake_picamera2(plain(RED)))
    assert open_source(camera="").name == "Raspberry Pi camera"
    monkeypatch.setattr(open_module, "find_picamera2", lambda: fake_picamera2(None, cameras=0))
    assert open_source(camera="auto").name == "/dev/video3"
    monkeypatch.setattr(open_module, "find_picamera2", lambda: None)
    assert open_source(camera="").name == "/dev/video3"
    devices.pop()
    with pytest.raises(SourceError, match="group 'video'"):
        open_source(camera="")
    devices.clear()
    with pytest.raises(SourceError, match="picamera2"):
        open_source(camera="")
