"""Flashing for real: onto loop devices, through the command, with typed confirmation."""

from __future__ import annotations

import errno
import importlib
import json
import lzma
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from boards.cli import image as image_group
from boards.flash.bmap import make_map, whole_map
from boards.flash.card import BlockCard
from boards.flash.disks import Disk, find
from boards.flash.guards import objections
from boards.flash.reading import read_disks
from boards.flash.source import open_source
from boards.flash.write import flash
from edge_kit.errors import ImageError
from edge_kit.terminal.command_line import run_group
from tests.support.boards.loops import Loop, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")

# By name: `boards.commands.flash` is also what click calls.
command = importlib.import_module("boards.commands.flash")
LOOPS = command.LOOPS
MIB = 1 << 20
NOISE = random.Random(3).randbytes(MIB)
TIMEOUT_S = 120


def write_image(file: Path, size: int, *at_mib: int) -> Path:
    """Write a sparse image with a MiB of noise at some places."""
    with file.open("wb") as out:
        for mib in at_mib:
            out.seek(mib * MIB)
            out.write(NOISE)
        out.truncate(size)
    file.with_name(f"{file.name}.bmap").write_bytes(make_map(file).encode())
    return file


@pytest.fixture
def loop(tmp_path) -> Iterator[Callable[..., Loop]]:
    """Make loop devices on sparse files; all end with the test."""
    made: list[Loop] = []

    def make(size: int, *options: str, file: Path | None = None) -> Loop:
        file = file or tmp_path / f"card-{len(made)}"
        with file.open("wb") as out:
            out.truncate(size)
        made.append(Loop(file, *options))
        return made[-1]

    yield make
    for device in made:
        device.detach()


@pytest.fixture
def mounted(tmp_path) -> Iterator[Callable[..., Path]]:
    """Mount things; all are unmounted with the test."""
    points: list[Path] = []

    def mount(*options: str) -> Path:
        point = tmp_path / f"mount-{len(points)}"
        point.mkdir()
        subprocess.run(["mount", *options, point], check=True, capture_output=True)
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", point], check=True)


def disk_of(device: Loop) -> Disk:
    return find(read_disks(), device.path)


def quiet(_stage: str, _done: int, _whole: int) -> None:
    pass


def typing_in(text: str, *args: object) -> subprocess.CompletedProcess[str]:
    """Run the command in a terminal in which somebody types `text`."""
    line = [sys.executable, "-m", "edge_kit.cli", "image", "flash", *map(str, args)]
    outer, inner = pty.openpty()
    try:
        os.write(outer, f"{text}\n".encode())
        return subprocess.run(
            line, env=os.environ | {LOOPS: "1"}, stdin=inner, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    finally:
        os.close(outer)
        os.close(inner)


@pytest.fixture
def run_flash(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run the command without a terminal; return its code, output and standard error."""

    def run(*args: object, test: str = "1") -> tuple[int, str, str]:
        monkeypatch.setenv(LOOPS, test)
        code = run_group(image_group, "edge-kit image", ["flash", *map(str, args)])
        return code, *capsys.readouterr()

    return run


def test_image_of_4_gib_arrives_identical(tmp_path, loop):
    image = write_image(tmp_path / "a.img", 4 << 30, 0, 1, 700, 2049, 4095)
    device = loop(4 << 30)
    done = typing_in(device.name, image, device.path, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "device": device.path, "image_size": 4 << 30, "written": 5 * MIB, "verified": 5 * MIB,
    }  # fmt: skip
    # What is behind the device: the same bytes in the same places, and holes, which are zeros.
    assert make_map(device.file) == make_map(image)


@pytest.mark.parametrize("mapped", [True, False])
def test_packed_image_replaces_what_the_card_held(tmp_path, loop, mapped):
    raw = write_image(tmp_path / "a.img", 24 * MIB + 512, 0, 9, 17)
    image = tmp_path / "a.img.xz"  # its map is a.img.bmap
    image.write_bytes(lzma.compress(raw.read_bytes(), preset=0))
    device = loop(40 * MIB)
    device.file.write_bytes(b"\xee" * (40 * MIB))
    done = typing_in(device.path, image, device.path, *([] if mapped else ["--no-bmap"]))
    assert done.returncode == 0, done.stderr
    assert "written, read back, equal" in done.stdout
    found = Path(device.path).read_bytes()
    assert found[24 * MIB + 512 :] == b"\xee" * (15 * MIB - 512) + bytes(MIB)
    if mapped:
        assert [found[mib * MIB : (mib + 1) * MIB] == NOISE for mib in (0, 9, 17)] == [True] * 3
        assert found[MIB : 9 * MIB] == b"\xee" * (8 * MIB)
    else:
        assert found[: 24 * MIB + 512] == raw.read_bytes()


@pytest.mark.parametrize("typed", ["", "y", "yes", "loop", "sda"])
def test_wrong_confirmation_writes_nothing(tmp_path, loop, typed):
    image, device = write_image(tmp_path / "a.img", 2 * MIB, 0), loop(8 * MIB)
    done = typing_in(typed, image, device.path)
    assert done.returncode == 11
    assert "not confirmed, so nothing was written" in done.stderr
    assert Path(device.path).read_bytes() == bytes(8 * MIB)


def test_refusal_is_an_error_and_writes_nothing(tmp_path, loop, run_flash):
    image = write_image(tmp_path / "a.img", 2 * MIB, 0)
    device, small, locked = loop(8 * MIB), loop(MIB), loop(8 * MIB, "--read-only")
    for args, options, code, sentence in (
        ((image, device.path), {}, 2, "standard input is not a terminal"),
        ((image, device.path, "--yes"), {}, 2, "--yes needs the device's serial number"),
        (
            (image, device.path, "--yes", "--serial", "7"),
            {},
            11,
            "has no serial number, so it cannot",
        ),
        ((image, device.path), {"test": "0"}, 11, "is not a disk but of kind loop"),
        ((image, device.path, "--force-device", "sda"), {}, 2, "--force-device names sda"),
        ((image, small.path), {}, 11, "is too small: 1,048,576 bytes"),
        ((image, locked.path), {}, 11, "is read-only"),
        ((image, "/dev/nowhere"), {}, 11, "is not a block device"),
        ((image, image), {}, 11, "is not a block device"),
        ((tmp_path / "none", device.path), {}, 11, "there is no image"),
        ((image,), {}, 2, "no device was named"),
        ((image, device.path, "--bmap", image, "--no-bmap"), {}, 2, "cannot be used together"),
        ((image, device.path, "--bmap", image), {}, 11, "not a valid block map"),
    ):
        found, _, said = run_flash(*args, **options)
        assert (found, sentence in said) == (code, True), (args, said)
    assert Path(device.path).read_bytes() == bytes(8 * MIB)


def test_list_shows_loop_devices_in_tests_only(loop, run_flash):
    device = loop(8 * MIB)
    rows = json.loads(run_flash("--json")[1])["devices"]
    assert {r["path"]: r["objections"] for r in rows}[device.path] == []
    assert device.path in run_flash()[1].split("Refused:")[0]
    assert device.path not in run_flash(test="")[1]


@pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="e2fsprogs is not installed")
def test_mounted_device_is_refused_by_guard_and_kernel(loop, mounted):
    device = loop(16 * MIB)
    subprocess.run(["mkfs.ext4", "-q", device.path], check=True)
    point = mounted(device.path)
    disks = read_disks()
    disk = find(disks, device.path)
    assert [o.code for o in objections(disk, disks, loops=True)] == ["mounted"]
    assert disk.mounts == (str(point),)
    with pytest.raises(ImageError, match="is in use"):
        BlockCard(disk)


@pytest.mark.skipif(shutil.which("mkfs.btrfs") is None, reason="btrfs-progs is not installed")
def test_second_disk_of_a_mounted_btrfs_is_refused_by_guard_and_kernel(loop, mounted):
    one, other = loop(256 * MIB), loop(256 * MIB)
    subprocess.run(
        ["mkfs.btrfs", "-q", "-d", "raid1", "-m", "raid1", one.path, other.path],
        check=True, capture_output=True,
    )  # fmt: skip
    mounted(one.path)
    disks = read_disks()
    found = {
        d.path: {o.code for o in objections(d, disks, loops=True)}
        for d in (find(disks, one.path), find(disks, other.path))
    }
    assert found == {one.path: {"mounted", "pool"}, other.path: {"pool"}}
    with pytest.raises(ImageError, match="is in use"):
        BlockCard(find(disks, other.path))


@pytest.mark.skipif(shutil.which("mkswap") is None, reason="mkswap is not installed")
def test_swap_in_use_is_refused_by_guard_and_kernel(loop):
    device = loop(16 * MIB)
    subprocess.run(["mkswap", "-q", device.path], check=True, capture_output=True)
    subprocess.run(["swapon", device.path], check=True)
    try:
        disks = read_disks()
        disk = find(disks, device.path)
        assert [o.code for o in objections(disk, disks, loops=True)] == ["swap"]
        with pytest.raises(ImageError, match="is in use"):
            BlockCard(disk)
    finally:
        subprocess.run(["swapoff", device.path], check=True)


@pytest.mark.skipif(shutil.which("mkfs.ext4") is None, reason="e2fsprogs is not installed")
def test_contents_are_known_without_udev(loop):
    image = loop(16 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-L", "root fs", image.path], check=True)
    assert disk_of(image).contents == "ext4 root fs"


@pytest.mark.parametrize("change", [{"size": 5}, {"number": "1:1"}])
def test_exchanged_device_is_not_opened(loop, change):
    disk = disk_of(loop(8 * MIB))
    with pytest.raises(ImageError, match="another device than a moment ago"):
        BlockCard(replace(disk, **change))
    BlockCard(disk).close()  # and whoever asks properly can have it


def test_file_is_not_opened_as_a_card(tmp_path, loop):
    (tmp_path / "a").write_bytes(b"x")
    with pytest.raises(ImageError, match="is not a block device"):
        BlockCard(replace(disk_of(loop(MIB)), path=str(tmp_path / "a")))


def test_reading_back_bypasses_the_cache(tmp_path, loop):
    image, device = write_image(tmp_path / "a.img", 8 * MIB, 0, 5), loop(8 * MIB)

    class Forgetful(BlockCard):
        def drop_caches(self) -> None:
            self.sync()
            # Behind the device's back: its page cache still holds what was written.
            with device.file.open("r+b", buffering=0) as file:
                file.seek(5 * MIB)
                file.write(b"\0")
                os.fsync(file.fileno())
            super().drop_caches()

    with (
        Forgetful(disk_of(device)) as card,
        pytest.raises(ImageError, match="gives back other bytes"),
    ):
        flash(open_source(image), whole_map(8 * MIB), card, quiet)


def test_card_that_fails_while_written_is_an_error(tmp_path, mounted, loop):
    # The device claims 64 MiB and stands on 8: writes beyond fail in the kernel, with EIO.
    point = mounted("-t", "tmpfs", "-o", "size=8m", "tmpfs")
    image = write_image(tmp_path / "a.img", 64 * MIB, *range(0, 64))
    device = loop(64 * MIB, file=point / "card")
    with BlockCard(disk_of(device)) as card, pytest.raises(ImageError) as caught:
        flash(open_source(image), make_map(image), card, quiet)
    assert "the card was pulled out or fails" in str(caught.value)
    with BlockCard(disk_of(device)) as card:
        assert card.read(0, 512) == bytes(512)


def test_device_without_room_raises_enospc(loop):
    with BlockCard(disk_of(loop(MIB))) as card, pytest.raises(OSError) as caught:
        card.write(MIB, b"x" * 512)
    assert caught.value.errno == errno.ENOSPC


@pytest.fixture
def numbered(monkeypatch) -> Callable[..., None]:
    """Give devices of the command's lsblk a serial number, which loop devices lack."""

    serials: dict[str, str] = {}
    monkeypatch.setattr(
        command, "read_disks",
        lambda: tuple(replace(d, serial=serials.get(d.path, "")) for d in read_disks()),
    )  # fmt: skip

    def give(serial: str, *devices: Loop) -> None:
        serials.update((device.path, serial) for device in devices)

    return give


def test_right_serial_number_asks_nobody(tmp_path, loop, run_flash, numbered):
    image, device = write_image(tmp_path / "a.img", 2 * MIB, 0), loop(8 * MIB)
    numbered("A1B2", device)
    code, _, said = run_flash(image, device.path, "--yes", "--serial", "A1B3")
    assert (code, "has the serial number 'A1B2', not 'A1B3'" in said) == (11, True)
    assert Path(device.path).read_bytes() == bytes(8 * MIB)
    code, out, said = run_flash(image, device.path, "--yes", "--serial", "A1B2", "--json")
    assert (code, json.loads(out)["verified"]) == (0, MIB), said
    assert "verifying" in said
    assert Path(device.path).read_bytes()[:MIB] == NOISE


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupted_flash_says_what_state_the_card_is_in(
    tmp_path, loop, run_flash, numbered, monkeypatch, number
):
    image, device = write_image(tmp_path / "a.img", 8 * MIB, 0, 6), loop(8 * MIB)
    device.file.write_bytes(b"\xee" * (8 * MIB))
    numbered("A1B2", device)
    sync, calls = BlockCard.sync, []

    def interrupted(card: BlockCard) -> None:
        sync(card)
        calls.append(card)
        if len(calls) == 2:  # all but the partition table is there
            os.kill(os.getpid(), number)

    monkeypatch.setattr(BlockCard, "sync", interrupted)
    # A shell that starts tests in the background ignores Ctrl-C for them.
    plain = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
    before = signal.signal(number, plain)
    try:
        code, _, said = run_flash(image, device.path, "--yes", "--serial", "A1B2")
        assert signal.getsignal(number) is plain
    finally:
        signal.signal(number, before)
    assert (code, "interrupted: the card is not usable" in said) == (130, True)
    assert Path(device.path).read_bytes()[:MIB] == bytes(MIB)


def test_card_exchanged_while_asking_is_not_written(
    tmp_path, loop, run_flash, numbered, monkeypatch
):
    image, device = write_image(tmp_path / "a.img", 2 * MIB, 0), loop(8 * MIB)
    numbered("A1B2", device)

    def think(*_args: object, **_options: object) -> str:
        numbered("C3D4", device)
        return device.name

    monkeypatch.setattr(command.sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(command.click, "prompt", think)
    code, _, said = run_flash(image, device.path)
    assert (code, "has changed since you were asked" in said) == (11, True)
    assert Path(device.path).read_bytes() == bytes(8 * MIB)
