"""What is put together from several sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from boards.flash.disks import find
from boards.flash.guards import may_flash, objections
from boards.flash.reading import Reading, disks_of, parse_blkid, read_disks, take_reading
from edge_kit.errors import ImageError
from tests.support.boards.lsblk import GB, answer, disk, on, part, sd, usb

PC = disk("sda", 500 * GB, part("sda1", at="/"))


def reading(*nodes, blkid=(), busy=(), loops=(), writers=(), cards=(), mountinfo=()) -> Reading:
    return Reading(
        answer([PC, *nodes]),
        dict(blkid),
        tuple(busy),
        dict(loops),
        dict(writers),
        dict(cards),
        tuple(mountinfo),
    )


def codes(said: Reading, name: str) -> list[str]:
    disks = disks_of(said)
    found = objections(find(disks, name), disks)
    assert not may_flash(found, forced=True) or not found
    return [o.code for o in found]


def test_answer_of_blkid_is_read():
    text = "DEVNAME=/dev/sdb1\nLABEL=my\\ card\nUUID=1-2\nTYPE=vfat\n\n"
    assert parse_blkid(text) == {
        "DEVNAME": "/dev/sdb1", "LABEL": "my card", "UUID": "1-2", "TYPE": "vfat",
    }  # fmt: skip
    assert parse_blkid("") == {}


def test_blkid_tells_contents_where_lsblk_does_not():
    said = {"/dev/sdb1": "TYPE=zfs_member\nLABEL=tank\n", "/dev/sdc": "TYPE=ext4\n"}
    disks = disks_of(reading(usb("sdb", 32 * GB, part("sdb1")), usb("sdc", fstype="vfat"),
                             blkid=said.items()))  # fmt: skip
    assert find(disks, "sdb1").filesystem == "zfs_member"
    assert find(disks, "sdc").filesystem == "vfat"


def test_loop_device_makes_the_device_behind_it_held():
    nodes = (usb("sdb", 32 * GB, part("sdb1")), on("loop1", "loop"))
    assert codes(reading(*nodes), "sdb") == []
    for behind in ("/dev/sdb", "/dev/sdb1"):
        assert codes(reading(*nodes, loops=[("loop1", behind)]), "sdb") == ["held"]
    assert codes(reading(*nodes, loops=[("loop1", "/home/me/file")]), "sdb") == []
    # A system that runs from a loop device runs from what is behind it.
    root = (usb("sdb", 32 * GB), on("loop1", "loop", at="/usr"))
    assert codes(reading(*root, loops=[("loop1", "/dev/sdb")]), "sdb")[0] == "system"


@pytest.mark.parametrize("name", ["sdb", "sdb1"])
def test_busy_or_written_partition_refuses_its_disk(name):
    nodes = (usb("sdb", 32 * GB, part("sdb1")),)
    assert codes(reading(*nodes, busy=[name]), "sdb") == ["busy"]
    writers = [(f"/dev/{name}", ("qemu (7)",))]
    assert codes(reading(*nodes, writers=writers), "sdb") == ["open"]
    # What is mounted is busy as well; one reason is enough.
    mounted = usb("sdb", 32 * GB, part("sdb1", at="/media"))
    assert codes(reading(mounted, busy=[name]), "sdb") == ["mounted"]


def test_all_mount_points_count_where_lsblk_tells_one():
    lines = [
        "25 1 0:22 /@ / rw,relatime shared:1 - btrfs /dev/sdb1 rw,subvol=/@",
        "26 25 8:33 /deep /media/My\\040Photos rw - vfat /dev/odd rw",
        "27 25 0:5 / /proc rw - proc proc rw",
    ]
    sdc = usb("sdc", 32 * GB, part("sdc1"))
    said = reading(usb("sdb", 32 * GB, part("sdb1", at="/home", fstype="btrfs")), sdc,
                   mountinfo=lines)  # fmt: skip
    assert find(disks_of(said), "sdb1").mounts == ("/home", "/")
    assert codes(said, "sdb")[0] == "system"
    number = find(disks_of(said), "sdc1").number
    said = reading(sdc, mountinfo=[line.replace("8:33", number) for line in lines])
    assert find(disks_of(said), "sdc1").mounts == ("/media/My Photos",)
    assert codes(said, "sdc") == ["mounted"]


@pytest.mark.parametrize(("kind", "code"), [("SD", []), ("MMC", ["emmc"]), ("", [])])
def test_soldered_memory_is_told_from_a_card_by_the_kernel(kind, code):
    said = reading(sd("mmcblk0", 32 * GB, hotplug=0), cards=[("mmcblk0", kind)] if kind else ())
    disks = disks_of(said)
    assert [o.code for o in objections(find(disks, "mmcblk0"), disks)] == code


def test_reading_survives_encoding():
    said = reading(usb(), blkid=[("/dev/sdb", "TYPE=x\n")], busy=["sda"],
                   loops=[("loop0", "/a")], writers=[("/dev/sdb", ("dd (8)",))],
                   cards=[("mmcblk0", "SD")])  # fmt: skip
    text = json.dumps(said.encode())
    assert disks_of(Reading.decode(json.loads(text))) == disks_of(said)


def test_this_machine_is_read():
    assert disks_of(take_reading()) == disks_of(take_reading())
    assert isinstance(read_disks(), tuple)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [(None, "lsblk is not installed"), ("exit 1", "lsblk fails"), ("echo '{'", "cannot be read")],
)  # fmt: skip
def test_missing_or_failing_lsblk_is_an_error(tmp_path, monkeypatch, script, sentence):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "lsblk").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "lsblk").chmod(0o755)
    with pytest.raises(ImageError, match=sentence):
        read_disks()


def test_process_that_writes_a_device_is_named(monkeypatch, tmp_path):
    # /dev/full stands for a disk: nobody else opens it.
    (tmp_path / "lsblk").write_text(
        f"#!/bin/sh\ncat <<'E'\n{answer([disk('full', 0)])}\nE\n", encoding="utf-8"
    )
    (tmp_path / "lsblk").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script = "import sys; print('ready', flush=True); sys.stdin.read()"
    for mode, expected in (("rb", False), ("r+b", True)):
        with Path("/dev/full").open(mode, buffering=0) as file:
            process = subprocess.Popen(
                [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                pass_fds=[file.fileno()],
            )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            said = take_reading().writers.get("/dev/full", ())
            assert any(f"({process.pid})" in who for who in said) == expected
        finally:
            process.communicate(timeout=30)
