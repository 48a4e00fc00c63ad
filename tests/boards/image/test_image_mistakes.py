from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from boards.emulator.boot import start
from boards.image import packages
from boards.image.build import read_settings
from boards.image.packages import KEYRING, Mirrors, fetch
from boards.image.partitions import assemble, make_fat
from boards.onboard.settings import FILE
from edge_kit.errors import ConfigError, ImageError
from tests.support.mosquitto import free_port


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("camra = 'auto'", "did you mean 'camera'"),
        ("fps = 'two'", "fps"),
        ("threads = 0", "threads = 0 lies outside 1 to 256"),
        ("engine = 'tensorrt'", "is none of"),
        ("broker = 'http://b'", "http"),
        ("broker = 'mqtt://cam:s3cret@b'", "password"),
    ],
)
def test_what_the_device_would_refuse_is_refused_before_an_image_is_made(run, words, tmp_path):
    file = tmp_path / "device.toml"
    file.write_text(f"[run]\n{run}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_settings(file)
    said = f"{caught.value} {caught.value.hint}"
    assert words in said and str(file) in said and "s3cret" not in said
    # The name of the file that it was asked with says nothing to anybody.
    assert "/run" not in said.replace(str(file), "")


def test_what_the_device_takes_is_taken(tmp_path):
    file = tmp_path / "device.toml"
    file.write_text(
        "[run]\ncamera = 'rtsp://u:p@c/1'\nbroker = 'mqtts://b'\nfps = 2\n"
        "keep_trying = false\ndevice_id = 'cam-7'\n",
        encoding="utf-8-sig",
    )
    assert read_settings(file).run["fps"] == 2


@pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("mcopy", "qemu-system-aarch64")),
    reason="needs mtools and QEMU",
)
def test_an_image_whose_settings_make_no_sense_is_not_booted(tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("vmlinuz", "initrd.img", "cmdline.txt"):
        (tree / name).write_text("x\n")
    (tree / FILE).write_text("[sytem]\n")
    make_fat(tree, tmp_path / "fat", 1)
    assemble([tmp_path / "fat"], ["c"], tmp_path / "edge.img")
    monkeypatch.setattr(subprocess, "Popen", NoEmulator(subprocess.Popen))
    with (
        pytest.raises(ImageError, match="unknown table"),
        start(tmp_path / "edge.img", "virt", lambda _text: None),
    ):
        pass


class NoEmulator:
    """Starts programs, but no emulator."""

    def __init__(self, real: type[subprocess.Popen]) -> None:
        self._real = real

    def __call__(self, words: list[str], *rest: object, **named: object) -> subprocess.Popen:
        assert not any("qemu" in word for word in map(str, words))
        return self._real(words, *rest, **named)


@pytest.mark.skipif(
    shutil.which("apt-get") is None or not KEYRING.exists(), reason="needs Debian's apt"
)
def test_a_mirror_that_is_not_there_is_told_as_that(tmp_path, monkeypatch):
    """apt alone would say that it knows no such package."""
    monkeypatch.setattr(packages, "_RETRIES", "0")
    nowhere = Mirrors(f"http://127.0.0.1:{free_port()}/debian")
    with pytest.raises(ImageError, match=r"lists cannot be fetched.*--mirror") as caught:
        fetch(("tzdata",), nowhere, tmp_path, lambda _text: None)
    assert "Unable to locate" not in str(caught.value)


CUSTOMIZE = """
import sys, tempfile, time
from pathlib import Path
from boards.commands import customize as module
from edge_kit.cli import main

def slowly(image, bundle, settings, out, *rest):
    with tempfile.TemporaryDirectory(prefix=".image-", dir=out.parent) as name:
        (Path(name) / "edge.img").touch()
        time.sleep(300)

module.customize_image = slowly
module.Bundle.open = staticmethod(lambda path: None)
sys.argv[1:1] = ["image", "customize"]
sys.exit(main())
"""


def test_a_customization_that_is_terminated_leaves_nothing(tmp_path):
    config, image, out = tmp_path / "device.toml", tmp_path / "stock.img", tmp_path / "out"
    config.touch()
    image.touch()
    out.mkdir()
    words = [image, "--bundle", "b", "--config", config, "--out", out / "edge.img"]
    child = subprocess.Popen([sys.executable, "-c", CUSTOMIZE, *map(str, words)])
    try:
        deadline = time.monotonic() + 60
        while not list(out.glob(".image-*/edge.img")):
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) != 0
    finally:
        child.kill()
    assert list(Path(out).iterdir()) == []
