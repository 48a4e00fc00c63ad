"""Which disks may be overwritten, on trees written by hand: sizes to a byte, and what is unknown.

`test_recorded.py` has what real machines said.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from boards.flash.disks import Disk, find, parse_disks
from boards.flash.guards import LARGEST, candidates, may_flash, objections
from edge_kit.errors import ImageError
from tests.support.boards.lsblk import GB, answer, disk, on, part, sd, usb

IMAGE = 4 * GB
RECORDED = Path(__file__).parents[2] / "support/boards/lsblk_recordings"

PC = disk("sda", 500 * GB, part("sda1", at="/boot/efi", fstype="vfat"), part("sda2", at="/"))

# Machine, target, objection expected, whether --force-device may overrule it.
DANGEROUS = {
    "contents of an unknown kind": (
        [PC, usb("sdb", 64 * GB, part("sdb1", fstype="zfs_member"), part("sdb9"))],
        "sdb", "silent", False),
    "a device of an unknown kind": (
        [PC, disk("nbd0", 8 * GB, tran=None)], "nbd0", "virtual", False),
    "the boot area of soldered memory": (
        [PC, sd("mmcblk1", 32 * GB), sd("mmcblk1boot0", 5 * GB)], "mmcblk1boot0", "virtual", False),
    "an unknown bus": ([PC, disk("sdb", 100 * GB, tran="fc")], "sdb", "fixed", True),
    "a card one byte too small": ([PC, usb("sdb", IMAGE - 1)], "sdb", "small", False),
    "a USB disk just too large": ([PC, usb("sdb", LARGEST + 1)], "sdb", "large", True),
    "an optical drive on USB": ([PC, on("sr0", "rom", tran="usb")], "sr0", "kind", False),
}  # fmt: skip

GOOD = {
    "the largest card": ([PC, sd("mmcblk0", LARGEST)], "mmcblk0"),
    "the smallest card": ([PC, usb("sdb", IMAGE)], "sdb"),
    "a reader's second slot": ([PC, usb("sdb", 0), usb("sdc", 32 * GB)], "sdc"),
    "a card with an old system": (
        [PC, usb("sdb", 32 * GB, part("sdb1", fstype="vfat", label="bootfs"),
                 part("sdb2", fstype="ext4", label="rootfs"))], "sdb"),
}  # fmt: skip


def seen(nodes, name) -> tuple[Disk, tuple[Disk, ...]]:
    disks = parse_disks(answer(nodes))
    return find(disks, name), disks


@pytest.mark.parametrize("case", DANGEROUS)
def test_dangerous_target_is_refused(case):
    nodes, name, code, forcible = DANGEROUS[case]
    target, disks = seen(nodes, name)
    found = objections(target, disks, IMAGE)
    assert code in {o.code for o in found}
    assert not may_flash(found, forced=False)
    assert may_flash(found, forced=True) is forcible


@pytest.mark.parametrize("case", GOOD)
def test_card_is_accepted(case):
    target, disks = seen(*GOOD[case])
    assert objections(target, disks, IMAGE) == ()


@pytest.mark.parametrize("name", ["swap", "virtual-machine"])
def test_recorded_machine_without_a_card_offers_nothing(name):
    disks = parse_disks((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    rows = candidates(disks)
    assert rows
    assert all(not may_flash(found, forced=False) for _, found in rows)


def test_final_objections_come_first():
    target, disks = seen([PC], "sda")
    found = objections(target, disks)
    assert [o.forcible for o in found] == sorted(o.forcible for o in found)
    assert found[0].code == "system"


def test_loop_device_is_a_target_in_tests_only_and_while_unused():
    disks = parse_disks(answer([PC, on("loop1", "loop"), on("loop2", "loop", at="/mnt")]))
    assert objections(find(disks, "loop1"), disks, loops=True) == ()
    assert {o.code for o in objections(find(disks, "loop2"), disks, loops=True)} == {"mounted"}


def test_candidates_are_whole_devices_good_ones_first():
    disks = parse_disks(answer([PC, on("loop1", "loop"), usb()]))
    assert [(d.name, bool(found)) for d, found in candidates(disks)] == [
        ("sdb", False), ("sda", True),
    ]  # fmt: skip
    assert {d.name for d, _ in candidates(disks, loops=True)} == {"sda", "sdb", "loop1"}


def test_contents_name_file_systems_and_labels():
    assert seen(*GOOD["a card with an old system"])[0].contents == "vfat bootfs, ext4 rootfs"
    assert seen([usb(pttype="dos")], "sdb")[0].contents == "dos partition table"
    assert seen([usb()], "sdb")[0].contents == "nothing recognized"


def test_link_names_its_device(tmp_path):
    link = tmp_path / "by-id"
    link.symlink_to("/dev/sdb")
    assert find(parse_disks(answer([PC, usb()])), str(link)).name == "sdb"


@pytest.mark.parametrize("text", ["", "{}", '{"blockdevices": [{"kname": "sda"}]}'])
def test_damaged_answer_of_lsblk_is_an_error(text):
    with pytest.raises(ImageError, match="lsblk's answer cannot be read"):
        parse_disks(text)


def test_unknown_device_is_an_error():
    with pytest.raises(ImageError, match="sdx is not a block device"):
        find(parse_disks(answer([PC])), "sdx")
