"""What flash refuses or survives, on real loop devices."""

from __future__ import annotations

import hashlib
import importlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from boards.cli import image as image_group
from boards.flash.card import BlockCard
from boards.flash.disks import find
from boards.flash.guards import objections
from boards.flash.reading import read_disks
from edge_kit.terminal.command_line import run_group
from tests.support.boards.loops import Loop, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

command = importlib.import_module("boards.commands.flash")
MIB = 1 << 20
NOISE = random.Random(4).randbytes(MIB)


@pytest.fixture
def device(tmp_path, monkeypatch) -> Iterator[Loop]:
    """A loop device of 16 MiB, to which the command ascribes a serial number."""
    monkeypatch.setenv(command.LOOPS, "1")
    (tmp_path / "card").write_bytes(bytes(16 * MIB))
    made = Loop(tmp_path / "card")
    monkeypatch.setattr(
        command, "read_disks",
        lambda: tuple(replace(d, serial="S" if d.path == made.path else "")
                      for d in read_disks()),
    )  # fmt: skip
    yield made
    made.detach()


@pytest.fixture
def image(tmp_path) -> Path:
    file = tmp_path / "a.img"
    file.write_bytes(NOISE * 4)
    return file


@pytest.fixture
def run(capsys) -> Callable[..., tuple[int, str]]:
    """Flash unattended; return the exit code and standard error."""

    def call(image: object, target: object, *more: object) -> tuple[int, str]:
        line = ["flash", str(image), str(target), "--yes", "--serial", "S", *map(str, more)]
        return run_group(image_group, "edge-kit image", line), capsys.readouterr().err

    return call


@contextmanager
def running(*line: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Keep a program running that says a line when it is ready, and ends with its input."""
    process = subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **options  # type: ignore[call-overload]
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.communicate(timeout=30)


def untouched(device: Loop) -> bool:
    return Path(device.path).read_bytes() == bytes(16 * MIB)


def codes(path: str) -> set[str]:
    disks = read_disks()
    return {o.code for o in objections(find(disks, path), disks, loops=True)}


def test_target_that_is_not_a_block_device_is_refused(tmp_path, image, device, run):
    file = tmp_path / "file"
    file.write_text("mine")
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    for target in (file, tmp_path, dangling, "/dev/null", ""):
        code, said = run(image, target)
        assert (code, "is not a block device" in said) == (11, True), target
    assert file.read_text() == "mine"
    assert untouched(device)


def test_link_by_id_is_followed(tmp_path, image, device, run):
    link = tmp_path / "usb-STICK"
    link.symlink_to(device.path)
    assert run(image, link)[0] == 0
    assert Path(device.path).read_bytes()[: 4 * MIB] == NOISE * 4


def test_pipe_as_an_image_does_not_hang(tmp_path, device, run):
    os.mkfifo(tmp_path / "pipe")
    for image in (tmp_path / "pipe", "/dev/null", "/dev/zero", "/dev/tty"):
        code, said = run(image, device.path)
        assert (code, "is not a file" in said) == (11, True), image
    assert untouched(device)


def test_checksum_of_another_image_is_noticed_before_writing(image, device, run):
    beside = image.with_name("a.img.sha256")
    beside.write_text(f"{'0' * 64}  a.img\n")
    code, said = run(image, device.path)
    assert (code, "is not the file that a.img.sha256 was made of" in said) == (11, True)
    assert untouched(device)
    beside.write_text(f"{hashlib.sha256(NOISE * 4).hexdigest()}  a.img\n")
    code, said = run(image, device.path)
    assert (code, "checking" in said) == (0, True)


def test_user_without_rights_is_told_before_the_image_is_read(device, run):
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    os.seteuid(65534)
    try:
        code, said = run(folder / "none", device.path)
    finally:
        os.seteuid(0)
        folder.rmdir()
    assert code == 11
    assert "may not be written by this user; run the same command with sudo" in said
    assert untouched(device)


def test_device_open_for_writing_is_refused(image, device, run):
    with Path(device.path).open("r+b") as file, running(
        "sh", "-c", "exec 3<&0; echo ready; read x <&3; :", pass_fds=[file.fileno()]
    ) as process:  # fmt: skip
        code, said = run(image, device.path)
        assert (code, f"is open for writing in sh ({process.pid}) (end that" in said) == (11, True)
    assert untouched(device)


def test_loop_device_on_the_device_is_noticed(device):
    upon = Loop(Path(device.path))
    try:
        assert codes(device.path) == {"held"}
    finally:
        upon.detach()
    assert codes(device.path) == set()


@pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="e2fsprogs is not installed")
def test_mount_in_another_namespace_is_noticed(tmp_path, image, device, run):
    subprocess.run(["mkfs.ext4", "-q", device.path], check=True)
    before = Path(device.path).read_bytes()
    script = f"mount -o ro {device.path} {tmp_path} && echo ready; read x; :"
    with running("unshare", "--mount", "sh", "-c", script):
        code, said = run(image, device.path, "--force-device", device.name)
        assert (code, "is in use, but nothing shows by what" in said) == (11, True)
    assert Path(device.path).read_bytes() == before
    assert codes(device.path) == set()


def test_sighup_ignored_by_nohup_stays_ignored(image, device, run, monkeypatch):
    sync = BlockCard.sync

    def hung_up(card: BlockCard) -> None:
        sync(card)
        os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(BlockCard, "sync", hung_up)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(image, device.path)[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_interruption_while_reading_back_says_so(image, device, run, monkeypatch):
    read, calls = BlockCard.read, []

    def interrupted(card: BlockCard, offset: int, length: int) -> bytes:
        calls.append(offset)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return read(card, offset, length)

    monkeypatch.setattr(BlockCard, "read", interrupted)
    image.write_bytes(NOISE * 9)
    code, said = run(image, device.path)
    assert (code, "the card was written but not verified" in said) == (130, True)


@pytest.mark.parametrize(
    ("when", "sentence"),
    [("sync", "writing it ended after 0 of 4 MiB"), ("read", "reading back it ended after 0 of 4")],
)
def test_disk_of_size_zero_was_pulled_out(
    tmp_path, image, device, run, monkeypatch, when, sentence
):
    # Unplugged, a USB stick has size 0: Linux answers writes with ENOSPC and reads with nothing, as
    # seen in QEMU. A loop device whose file was cut does the same once it looks at its file again.
    before = getattr(BlockCard, when)

    def pulled(card: BlockCard, *args: int) -> object:
        if when == "sync":
            before(card)
        os.truncate(tmp_path / "card", 0)
        subprocess.run(["losetup", "--set-capacity", device.path], check=True)
        return None if when == "sync" else before(card, *args)

    monkeypatch.setattr(BlockCard, when, pulled)
    code, said = run(image, device.path)
    assert code == 11
    assert f"the card was pulled out or fails: {sentence}" in said
