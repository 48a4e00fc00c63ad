from __future__ import annotations

import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from edge_kit.errors import MissingExtraError, SourceError
from edge_kit.sources.camera import CameraSource
from edge_kit.sources.open import open_source
from edge_kit.sources.video import VideoSource
from tests.edge_kit.sources.test_sources import BLUE, RED, WAIT_S, is_colour, plain

cv2 = pytest.importorskip("cv2")

# video files


def write_video(path: Path, colours) -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"MJPG"), 10, (64, 48))
    assert writer.isOpened()
    for colour in colours:
        writer.write(np.ascontiguousarray(plain(colour)[:, :, ::-1]))  # OpenCV takes BGR
    writer.release()
    return path


def test_video_has_its_colours_and_drops_none(tmp_path):
    path = write_video(tmp_path / "two.avi", [RED, BLUE, RED])
    source = open_source(source=path)
    assert isinstance(source, VideoSource)
    frames = list(source.frames())
    assert [is_colour(f.pixels, c) for f, c in zip(frames, [RED, BLUE, RED], strict=True)] == [
        True
    ] * 3
    assert [f.name for f in frames] == ["two.avi#0", "two.avi#1", "two.avi#2"]
    assert source.dropped == 0


def test_file_that_is_not_a_video_is_an_error_that_names_it(tmp_path):
    (tmp_path / "x.mp4").write_bytes(b"not a video")
    with pytest.raises(SourceError, match="OpenCV can decode"):
        list(VideoSource(tmp_path / "x.mp4").frames())
    with pytest.raises(SourceError, match="no video at"):
        list(VideoSource(tmp_path / "none.mp4").frames())


def test_video_without_opencv(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError, match=r"edge-kit\[camera\]"):
        VideoSource(tmp_path / "x.mp4")


# a driver under CameraSource


class Driver:
    """A camera whose life a test writes down: colours are frames, None is its disappearance."""

    name = "fake"

    def __init__(self, *lives, refusals: int = 0):
        self.lives = list(lives)
        self.refusals = refusals
        self.opened = self.closed = self.decoded = 0
        self.now: list = []
        self.held = None

    def open(self):
        if self.opened and self.refusals:
            self.refusals -= 1
            raise SourceError("fake is not there")
        self.opened += 1
        self.now = list(self.lives.pop(0)) if self.lives else []

    def grab(self):
        self.held = self.now.pop(0) if self.now else None
        return self.held is not None

    def retrieve(self):
        self.decoded += 1
        return None if self.held == "damaged" else plain(self.held, 2, 2)

    def close(self):
        self.closed += 1


class Gate:
    """A driver that gives one frame each time the test opens it."""

    name = "gate"

    def __init__(self):
        self.go = threading.Semaphore(0)
        self.ready = threading.Semaphore(0)
        self.open_now = True
        self.count = -1

    def open(self):
        pass

    def grab(self):
        self.ready.release()
        assert self.go.acquire(timeout=WAIT_S)
        self.count += 1
        return self.open_now

    def retrieve(self):
        return np.full((2, 2, 3), self.count, np.uint8)

    def close(self):
        pass

    def step(self, count=1):
        for _ in range(count):
            assert self.ready.acquire(timeout=WAIT_S)
            self.go.release()
        assert self.ready.acquire(timeout=WAIT_S)  # the last frame is in its place
        self.ready.release()


def test_newest_frame_is_classified_and_the_missed_are_counted():
    gate = Gate()
    source = CameraSource(gate)
    frames = source.frames()
    first = threading.Thread(target=gate.step)
    first.start()
    assert next(frames).pixels[0, 0, 0] == 0
    first.join(WAIT_S)
    gate.step(6)
    frame = next(frames)
    assert frame.pixels[0, 0, 0] == 6
    assert frame.index == 6
    assert source.dropped == 5
    gate.open_now = False
    source._closed.set()
    gate.go.release()
    source.close()
    assert list(frames) == []


def test_camera_that_disappears_is_retried_and_said(caplog):
    pauses, seen = [], []

    def wait(seconds):
        pauses.append(seconds)
        if len(pauses) == 4:
            source.close()

    source = CameraSource(Driver([RED], [BLUE], refusals=2), wait=wait)
    source._slot.put = seen.append
    source._run()
    assert [is_colour(f.pixels, c) for f, c in zip(seen, (RED, BLUE), strict=True)] == [True] * 2
    assert [f.name for f in seen] == ["fake#0", "fake#1"]
    assert pauses == [1.0, 2.0, 4.0, 1.0]
    assert source.lost == 2
    said = [r.getMessage() for r in caplog.records]
    assert "stopped giving frames" in said[0]
    assert "fake is not there; next try in 2 s" in said[1]
    assert "is back" in said[3]


def test_camera_that_is_not_there_at_the_start_is_an_error():
    class Absent(Driver):
        def open(self):
            raise SourceError("there is no camera at /dev/video9")

    driver = Absent()
    with pytest.raises(SourceError, match="video9"):
        next(CameraSource(driver).frames())
    assert driver.closed


def test_frame_from_before_the_loss_is_not_handed_out_after_it():
    source = CameraSource(Driver([RED]), wait=lambda _s: source._closed.set())
    source._run()
    assert source.dropped == 1
    source._slot.end()
    assert source._slot.take() is None


def test_damaged_frames_are_left_out():
    seen = []
    source = CameraSource(Driver(["damaged", RED, "damaged"]), wait=lambda _s: None)
    source._slot.put = seen.append
    source._closed.is_set = iter([False] * 5 + [True] * 9).__next__
    source._run()
    assert [is_colour(f.pixels, RED) for f in seen] == [True]


def test_frames_above_the_asked_pace_are_not_even_decoded():
    driver = Driver([RED] * 30)
    ticks = iter(np.arange(0, 100, 1 / 30))
    source = CameraSource(
        driver, fps=10, clock=lambda: float(next(ticks)), wait=lambda _s: source._closed.set()
    )
    source._run()
    assert 9 <= driver.decoded <= 11
