"""What is put together of several witnesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from boards.flash.disks import find
from boards.flash.guards import may_flash, objections
from boards.flash.reading import Reading, _fstab, disks_of, parse_blkid, read_disks, take_reading
from edge_kit.errors import ImageError
from tests.support.lsblk import GB, disk, modern, on, part, sd, usb

PC = disk("sda", 500 * GB, part("sda1", at="/"))


def reading(*nodes, blkid=(), busy=(), loops=(), writers=(), cards=(), mountinfo=()) -> Reading:
    return Reading(
        modern([PC, *nodes]),
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


def test_what_blkid_says_is_read():
    text = "DEVNAME=/dev/sdb1\nLABEL=my\\ card\nUUID=1-2\nTYPE=vfat\n\n"
    assert parse_blkid(text) == {
        "DEVNAME": "/dev/sdb1", "LABEL": "my card", "UUID": "1-2", "TYPE": "vfat",
    }  # fmt: skip
    assert parse_blkid("") == {}


def test_blkid_is_believed_where_lsblk_knows_nothing():
    said = {"/dev/sdb1": "TYPE=zfs_member\nLABEL=tank\n", "/dev/sdc": "TYPE=ext4\n"}
    disks = disks_of(reading(usb("sdb", 32 * GB, part("sdb1")), usb("sdc", fstype="vfat"),
                             blkid=said.items()))  # fmt: skip
    assert find(disks, "sdb1").filesystem == "zfs_member"
    assert find(disks, "sdc").filesystem == "vfat"


def test_a_loop_device_stands_on_the_device_behind_it():
    nodes = (usb("sdb", 32 * GB, part("sdb1")), on("loop1", "loop"))
    assert codes(reading(*nodes), "sdb") == []
    for behind in ("/dev/sdb", "/dev/sdb1"):
        assert codes(reading(*nodes, loops=[("loop1", behind)]), "sdb") == ["held"]
    assert codes(reading(*nodes, loops=[("loop1", "/home/me/file")]), "sdb") == []
    # A system that runs from a loop device runs from what is behind it.
    root = (usb("sdb", 32 * GB), on("loop1", "loop", at="/usr"))
    assert codes(reading(*root, loops=[("loop1", "/dev/sdb")]), "sdb")[0] == "system"


def test_loop_devices_in_a_circle_are_no_trap():
    said = reading(on("loop1", "loop"), loops=[("loop1", "/dev/loop1"), ("loop9", "/dev/sdb")])
    assert find(disks_of(said), "loop1").children == ()


@pytest.mark.parametrize("name", ["sdb", "sdb1"])
def test_busy_and_written_devices_are_refused_with_all_below(name):
    nodes = (usb("sdb", 32 * GB, part("sdb1")),)
    assert codes(reading(*nodes, busy=[name]), "sdb") == ["busy"]
    writers = [(f"/dev/{name}", ("qemu (7)",))]
    assert codes(reading(*nodes, writers=writers), "sdb") == ["open"]
    # What is mounted is busy as well; one reason is enough.
    mounted = usb("sdb", 32 * GB, part("sdb1", at="/media"))
    assert codes(reading(mounted, busy=[name]), "sdb") == ["mounted"]


def test_every_mount_point_counts_not_only_the_one_that_old_versions_tell():
    lines = [
        "25 1 0:22 /@ / rw,relatime shared:1 - btrfs /dev/sdb1 rw,subvol=/@",
        "26 25 8:33 /deep /media/My\\040Photos rw - vfat /dev/odd rw",
        "27 25 0:5 / /proc rw - proc proc rw",
        "",
        "nonsense - ",
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


def test_a_disk_that_fstab_wants_is_no_plain_stick(tmp_path):
    links = tmp_path / "disk"
    for place, name, target in (("by-uuid", "12-34", "sdb1"), ("by-label", "my\\x20boot", "sdc1"),
                                ("by-id", "usb-Kingston_1-part2", "sdd2")):  # fmt: skip
        (links / place).mkdir(parents=True)
        (tmp_path / target).touch()
        (links / place / name).symlink_to(tmp_path / target)
    text = f"""# UUID=12-34 /comment ext4
UUID="12-34" /boot/firm\\040ware vfat noauto 0 2
LABEL=my\\040boot none swap sw
{links}/by-id/usb-Kingston_1-part2 /backup ext4 nofail
{tmp_path}/sdb1 /media/usb0 auto user,noauto
UUID=none-such /gone ext4
proc /proc proc
UUID=12-34
"""
    found = _fstab(text, links)
    assert found == {
        f"{tmp_path}/sdb1": ("/boot/firm ware",),
        f"{tmp_path}/sdc1": ("swap",),
        f"{tmp_path}/sdd2": ("/backup",),
    }


def test_a_disk_that_is_used_at_times_is_taken_by_name_only():
    said = replace(reading(usb("sdb", 32 * GB, part("sdb1"))), fstab={"/dev/sdb1": ("/boot",)})
    disks = disks_of(said)
    (found,) = objections(find(disks, "sdb"), disks)
    assert (found.code, found.forcible) == ("planned", True)
    assert "/etc/fstab wants it at /boot" in found.why
    mounted = replace(said, mountinfo=("25 1 0:22 / /boot rw - vfat /dev/sdb1 rw",))
    disks = disks_of(mounted)
    assert "planned" not in [o.code for o in objections(find(disks, "sdb"), disks)]


@pytest.mark.parametrize(("kind", "code"), [("SD", []), ("MMC", ["emmc"]), ("", [])])
def test_soldered_memory_is_told_from_a_card_by_the_kernels_word(kind, code):
    said = reading(sd("mmcblk0", 32 * GB, hotplug=0), cards=[("mmcblk0", kind)] if kind else ())
    disks = disks_of(said)
    assert [o.code for o in objections(find(disks, "mmcblk0"), disks)] == code


def test_a_reading_can_be_written_down():
    said = reading(usb(), blkid=[("/dev/sdb", "TYPE=x\n")], busy=["sda"],
                   loops=[("loop0", "/a")], writers=[("/dev/sdb", ("dd (8)",))],
                   cards=[("mmcblk0", "SD")])  # fmt: skip
    text = json.dumps(said.encode())
    assert disks_of(Reading.decode(json.loads(text))) == disks_of(said)


def test_this_machine_can_be_read():
    assert disks_of(take_reading()) == disks_of(take_reading())
    assert isinstance(read_disks(), tuple)


@pytest.mark.parametrize(
    ("script", "sentence"),
    [(None, "lsblk is not installed"), ("exit 1", "lsblk fails"), ("echo '{'", "cannot be read"),
     ("printf '\\377'", "cannot be read")],
)  # fmt: skip
def test_without_lsblk_there_is_a_sentence(tmp_path, monkeypatch, script, sentence):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        (tmp_path / "lsblk").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "lsblk").chmod(0o755)
    with pytest.raises(ImageError, match=sentence):
        read_disks()


def test_who_holds_a_device_open_is_found_by_name(monkeypatch, tmp_path):
    # /dev/full stands for a disk: nobody else opens it.
    (tmp_path / "lsblk").write_text(
        f"#!/bin/sh\ncat <<'E'\n{modern([disk('full', 0)])}\nE\n", encoding="utf-8"
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
