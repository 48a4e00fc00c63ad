from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np
import pytest
from PIL import Image

from edge_kit.errors import MissingExtraError, SourceError, UsageError
from edge_kit.sources.folder import FolderSource
from edge_kit.sources.live import LiveSource, PacedSource
from edge_kit.sources.newest import NewestFrame
from edge_kit.sources.open import open_source
from edge_kit.sources.photo import PhotoSource, read_photo
from edge_kit.sources.source import Frame, MemorySource

RED, BLUE = (255, 0, 0), (0, 0, 255)
WAIT_S = 30


def plain(colour, height=48, width=64) -> np.ndarray:
    return np.full((height, width, 3), colour, np.uint8)


def save(path, colour, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(plain(colour)).save(path, **more)
    return path


def is_colour(pixels: np.ndarray, colour) -> bool:
    """Lossy formats shift a little; a swapped red and blue differ by 255."""
    return pixels.dtype == np.uint8 and bool(
        np.abs(pixels.reshape(-1, 3).mean(axis=0) - np.array(colour)).max() < 12
    )


def numbered(count: int) -> list[np.ndarray]:
    return [plain((n, n, n), 2, 2) for n in range(count)]


# photos


@pytest.mark.parametrize("colour", [RED, BLUE])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".tif"])
def test_photo_has_its_colours(tmp_path, colour, suffix):
    path = save(tmp_path / f"photo{suffix}", colour)
    before = time.time()
    (frame,) = PhotoSource(path).frames()
    assert is_colour(frame.pixels, colour)
    assert frame.pixels.shape == (48, 64, 3)
    assert (frame.index, frame.name) == (0, f"photo{suffix}")
    assert before <= frame.captured_at <= time.time()


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1", "LA"])
def test_photo_of_any_mode_becomes_rgb(tmp_path, mode):
    suffix = ".tif" if mode == "CMYK" else ".png"
    Image.fromarray(plain((255, 255, 255))).convert(mode).save(tmp_path / f"p{suffix}")
    assert is_colour(read_photo(tmp_path / f"p{suffix}"), (255, 255, 255))


@pytest.mark.parametrize(("dtype", "suffix"), [("u2", ".png"), (">u2", ".tif"), ("i4", ".tif")])
def test_16_bit_photo_keeps_its_greys(tmp_path, dtype, suffix):
    path = tmp_path / f"p{suffix}"
    Image.fromarray(np.array([[0, 200 << 8], [255, 65535]], dtype)).save(path)
    assert read_photo(path)[..., 1].tolist() == [[0, 200], [0, 255]]


def test_photo_of_floating_point_numbers_is_an_error_that_names_it(tmp_path):
    Image.fromarray(np.full((4, 4), 0.5, np.float32)).save(tmp_path / "p.tif")
    with pytest.raises(SourceError, match="floating-point"):
        read_photo(tmp_path / "p.tif")


def test_photo_is_turned_upright(tmp_path):
    # orientation 6: the camera was held on its side; the file's left column is the top row
    stored = plain(BLUE)
    stored[:, :8] = RED
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(stored).save(tmp_path / "side.png", exif=exif)
    pixels = read_photo(tmp_path / "side.png")
    assert pixels.shape == (64, 48, 3)
    assert (pixels[:8] == RED).all()
    assert (pixels[8:] == BLUE).all()


@pytest.mark.parametrize("keep", [0, 10, 300])
def test_truncated_photo_is_an_error_that_names_it(tmp_path, keep):
    path = tmp_path / "cut.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SourceError, match=r"cut\.jpg"):
        read_photo(path)


def test_missing_photo_is_an_error_that_names_it(tmp_path):
    with pytest.raises(SourceError, match="check the path"):
        read_photo(tmp_path / "none.jpg")


def test_photos_without_pillow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"edge-kit\[photos\]"):
        read_photo(tmp_path / "x.jpg")


# folders


def test_folder_is_read_recursively_in_order_with_relative_names(tmp_path):
    for name in ("b/2.jpg", "a/1.PNG", "b/1.jpg", "0.jpeg"):
        save(tmp_path / name, RED, format="JPEG")
    (tmp_path / "a" / "notes.txt").write_text("no photo")
    (tmp_path / "a" / "._1.jpg").write_text("a resource fork")
    frames = list(FolderSource(tmp_path).frames())
    assert [f.name for f in frames] == ["0.jpeg", "a/1.PNG", "b/1.jpg", "b/2.jpg"]
    assert [f.index for f in frames] == [0, 1, 2, 3]


@pytest.mark.parametrize("colour", [RED, BLUE])
def test_folder_has_its_colours(tmp_path, colour):
    save(tmp_path / "a.jpg", colour)
    (frame,) = FolderSource(tmp_path).frames()
    assert is_colour(frame.pixels, colour)


def test_unreadable_photo_is_counted_logged_and_skipped(tmp_path, caplog):
    save(tmp_path / "1.jpg", RED)
    (tmp_path / "2.jpg").write_bytes(b"\xff\xd8 not really")
    save(tmp_path / "3.jpg", BLUE)
    source = FolderSource(tmp_path)
    assert [f.name for f in source.frames()] == ["1.jpg", "3.jpg"]
    assert source.skipped == 1
    assert "2.jpg" in caplog.text


def test_folder_without_photos_is_an_error_that_names_it(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(SourceError, match="holds no photo"):
        next(FolderSource(tmp_path).frames())


def test_folder_that_may_not_be_read_is_an_error_that_names_it_and_a_subfolder_is_skipped(
    tmp_path, monkeypatch, caplog
):
    save(tmp_path / "open/1.png", RED)
    save(tmp_path / "shut/2.png", RED)
    real, shut = os.scandir, [str(tmp_path / "shut")]

    def scandir(path):
        if str(path) in shut:
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    source = FolderSource(tmp_path)
    assert [f.name for f in source.frames()] == ["open/1.png"]
    assert source.skipped == 1 and "shut cannot be read (Permission denied)" in caplog.text
    shut.append(str(tmp_path))
    with pytest.raises(SourceError, match=r"cannot be read \(Permission denied\)"):
        next(FolderSource(tmp_path).frames())


def test_folder_of_nothing_but_damaged_photos_is_an_error_that_names_it(tmp_path):
    (tmp_path / "1.jpg").write_bytes(b"?")
    with pytest.raises(SourceError, match="none of the 1 photos"):
        list(FolderSource(tmp_path).frames())


def test_closing_a_folder_ends_it(tmp_path):
    for n in range(3):
        save(tmp_path / f"{n}.png", RED)
    source = FolderSource(tmp_path)
    frames = source.frames()
    next(frames)
    source.close()
    assert list(frames) == []


# live


def test_slot_keeps_the_newest_and_counts_the_rest():
    slot = NewestFrame()
    frames = [Frame(p, 0.0, i, "") for i, p in enumerate(numbered(5))]
    for frame in frames:
        slot.put(frame)
    assert slot.take() is frames[4]
    assert slot.dropped == 4
    slot.put(frames[0])
    slot.clear()
    assert slot.dropped == 5
    slot.put(frames[1])
    slot.end(SourceError("gone"))
    slot.put(frames[2])
    assert slot.take() is frames[1]
    with pytest.raises(SourceError, match="gone"):
        slot.take()


class Stepped:
    """A source whose frames come when the test says so."""

    live = True
    name = "stepped"
    dropped = skipped = 0

    def __init__(self, images):
        self.images = images
        self.go = threading.Semaphore(0)
        self.done = threading.Semaphore(0)
        self.closed = False

    def frames(self):
        for index, pixels in enumerate(self.images):
            assert self.go.acquire(timeout=WAIT_S)
            if self.closed:
                return
            yield Frame(pixels, time.time(), index, str(index))
            self.done.release()

    def step(self, count: int = 1):
        for _ in range(count):
            self.go.release()
            assert self.done.acquire(timeout=WAIT_S)

    def close(self):
        self.closed = True
        self.go.release()


def test_slow_reader_gets_the_newest_frame_and_the_missed_are_counted():
    inner = Stepped(numbered(10))
    source = LiveSource(inner, None)
    frames = source.frames()
    first = threading.Thread(target=inner.step)
    first.start()
    assert next(frames).index == 0
    first.join(WAIT_S)
    inner.step(5)  # the reader is busy while frames 1 to 5 come
    assert next(frames).index == 5
    assert source.dropped == 4
    inner.step(4)
    assert next(frames).index == 9
    assert source.dropped == 7
    assert list(frames) == []
    source.close()


def test_source_closed_before_it_is_read_yields_nothing():
    source = LiveSource(Stepped(numbered(3)), None)
    source.close()
    assert list(source.frames()) == []


def test_closing_a_live_source_wakes_its_reader():
    inner = Stepped(numbered(3))
    source = LiveSource(inner, None)
    reader = threading.Thread(target=lambda: list(source.frames()))
    reader.start()
    source.close()
    reader.join(WAIT_S)
    assert not reader.is_alive()


def test_error_of_the_inner_source_reaches_the_reader(tmp_path):
    source = LiveSource(FolderSource(tmp_path / "none"), 1000)
    with pytest.raises(SourceError, match="No such file"):
        list(source.frames())


def test_pacing_waits_for_each_turn_and_drops_none():
    waits = []
    source = PacedSource(MemorySource(numbered(4)), 0.5, waits.append)
    frames = list(source.frames())
    assert [f.index for f in frames] == [0, 1, 2, 3]
    assert source.dropped == 0
    # frame n is due 2 n seconds after the first; the injected wait returns at once
    assert len(waits) == 3
    assert [round(w) for w in waits] == [2, 4, 6]


def test_closing_a_paced_source_ends_its_wait():
    source = PacedSource(MemorySource(numbered(2)), 0.001)
    frames = source.frames()
    next(frames)
    threading.Timer(0.05, source.close).start()
    assert list(frames) == []


def test_folder_played_live_is_a_live_source(tmp_path):
    for n in range(5):
        save(tmp_path / f"{n}.png", RED)
    source = open_source(source=tmp_path, fps=500, live=True)
    assert source.live
    seen = list(source.frames())
    assert len(seen) + source.dropped == 5
    assert all(is_colour(f.pixels, RED) for f in seen)
    indices = [f.index for f in seen]
    assert indices == sorted(set(indices))
    assert indices[-1] == 4
    source.close()


# from flags


def test_flags_for_files(tmp_path):
    save(tmp_path / "one.jpg", BLUE)
    assert isinstance(open_source(source=tmp_path), FolderSource)
    assert isinstance(open_source(source=tmp_path / "one.jpg"), PhotoSource)
    assert isinstance(open_source(source=str(tmp_path), fps=5), PacedSource)
    assert not open_source(source=tmp_path).live


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, "either --camera or --source"),
        ({"camera": "0", "source": "x"}, "either --camera or --source"),
        ({"source": ".", "live": True}, "add --fps"),
        ({"source": ".", "fps": 0}, "above 0"),
        ({"source": ".", "fps": float("nan")}, "above 0"),
        ({"camera": "front door"}, "is not a camera"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(flags, words):
    with pytest.raises(UsageError, match=words):
        open_source(**flags)


def test_missing_paths_and_unknown_kinds_are_refused(tmp_path):
    with pytest.raises(SourceError, match="check the path"):
        open_source(source=tmp_path / "none")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(SourceError, match="known are"):
        open_source(source=tmp_path / "notes.txt")
    with pytest.raises(SourceError, match="cannot be read"):
        open_source(source=tmp_path / ("x" * 300))
