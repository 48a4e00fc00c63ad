"""Booting an image in QEMU: its files, settings and command line."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from boards.emulator.boot import boot_files, command_line, start
from boards.image.partitions import assemble, make_fat
from boards.onboard.settings import FILE
from edge_kit.errors import ImageError, UsageError
from tests.support.boards.stock import EPOCH, tools


def test_kernel_command_line_is_the_images_but_for_the_console():
    line = command_line("console=tty0 console=ttyS1,115200 root=LABEL=EDGEROOT rw\n", "ttyAMA0")
    assert line == "console=ttyAMA0 root=LABEL=EDGEROOT rw"


@tools
def test_image_without_a_kernel_is_refused(tmp_path, tree):
    fat = tmp_path / "fat"
    make_fat(tree / "a folder", fat, EPOCH)
    image = tmp_path / "x.img"
    assemble([fat], ["c"], image)
    with pytest.raises(ImageError, match="vmlinuz is missing"):
        boot_files(image, tmp_path, "")


@pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("mcopy", "qemu-system-aarch64")),
    reason="needs mtools and QEMU",
)
def test_image_with_invalid_settings_is_not_booted(tmp_path, monkeypatch):
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


def test_unknown_machine_is_refused(tmp_path):
    with (
        pytest.raises(UsageError, match="take one of virt, raspi3b"),
        start(tmp_path / "none.img", "pdp11", print),
    ):
        pass
