"""Which disks may be overwritten, on trees written by hand.

`test_boards_recorded.py` has what real machines said.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from boards.flash.disks import Disk, find, parse_disks
from boards.flash.guards import LARGEST, candidates, may_flash, objections
from edge_kit.errors import ImageError
from tests.support.lsblk import DIALECTS, GB, disk, modern, on, part, sd, usb

IMAGE = 4 * GB
RECORDED = Path(__file__).parents[2] / "support/data/lsblk"

PC = disk("sda", 500 * GB, part("sda1", at="/boot/efi", fstype="vfat"), part("sda2", at="/"))
LV_ROOT = on("vg-root", "lvm", kname="dm-1", at="/", fstype="ext4")
LUKS_PC = disk(
    "nvme0n1", 1000 * GB,
    part("nvme0n1p1", at="/boot"),
    part("nvme0n1p3", GB, on("luks-1", "crypt", LV_ROOT, kname="dm-0", fstype="LVM2_member"),
         fstype="crypto_LUKS"),
    tran="nvme",
)  # fmt: skip

# Machine, target, objection expected, whether --force-device may overrule it. Written by hand, of
# what was not at hand to record: hardware, other programs, and sizes to a byte.
DANGEROUS = {
    "Fedora's ostree": (
        [disk("sda", 500 * GB, part("sda3", at="/sysroot")), PC], "sda", "system", False),
    "an EFI partition on a second disk": (
        [PC, disk("sdb", 500 * GB, part("sdb1", at="/boot/efi"))], "sdb", "system", False),
    "root on ZFS": (
        [disk("sda", 500 * GB, part("sda1", at="/boot/efi"), part("sda2", fstype="zfs_member"))],
        "sda", "silent", False),
    "a USB disk in a ZFS pool": (
        [PC, usb("sdb", 64 * GB, part("sdb1", fstype="zfs_member"), part("sdb9"))],
        "sdb", "silent", False),
    "a Ceph disk": ([PC, usb("sdb", 64 * GB, fstype="ceph_bluestore")], "sdb", "silent", False),
    "a DRBD disk": ([PC, usb("sdb", 64 * GB, fstype="drbd")], "sdb", "silent", False),
    "a BitLocker stick": ([PC, usb("sdb", 32 * GB, part("sdb1", fstype="BitLocker"))],
                          "sdb", "member", True),
    "a VMware volume": ([PC, usb("sdb", 32 * GB, fstype="VMFS_volume_member")],
                        "sdb", "member", True),
    "a stick with a snapshot store": (
        [PC, usb("sdb", 32 * GB, part("sdb1", fstype="DM_snapshot_cow"))], "sdb", "member", True),
    "a card one byte too small": ([PC, usb("sdb", IMAGE - 1)], "sdb", "small", False),
    "a USB disk just too large": ([PC, usb("sdb", LARGEST + 1)], "sdb", "large", True),
    "a SATA disk in a hot-swap bay": ([PC, disk("sdb", 200 * GB, rm=1, hotplug=1)],
                                      "sdb", "fixed", True),
    "an iSCSI volume": ([PC, disk("sdb", 100 * GB, tran="iscsi", rm=0)], "sdb", "fixed", True),
    "a volume over Fibre Channel": ([PC, disk("sdb", 100 * GB, tran="fc")], "sdb", "fixed", True),
    "a SCSI disk of a virtual machine": ([PC, disk("sdb", 100 * GB, tran="spi")],
                                         "sdb", "fixed", True),
    "soldered eMMC": (
        [PC, sd("mmcblk1", 32 * GB), sd("mmcblk1boot0", 4 << 20, ro=1)], "mmcblk1", "emmc", True),
    "the boot area of eMMC": (
        [PC, sd("mmcblk1", 32 * GB), sd("mmcblk1boot0", 5 * GB)],
        "mmcblk1boot0", "emmc-boot", False),
    "a network block device": ([PC, disk("nbd0", 8 * GB, tran=None)], "nbd0", "virtual", False),
    "a cached disk": ([PC, disk("bcache0", 8 * GB, tran=None)], "bcache0", "virtual", False),
    "a disk that a program serves": (
        [PC, disk("ublkb0", 8 * GB, tran=None)], "ublkb0", "virtual", False),
    "a disk over Ethernet": (
        [PC, disk("etherd/e1.0", 8 * GB, kname="etherd!e1.0", tran=None)],
        "etherd!e1.0", "virtual", False),
    "the flash memory that a board boots from": (
        [PC, disk("mtdblock0", 8 * GB, tran=None)], "mtdblock0", "emmc-boot", False),
    "a volume of a ZFS pool": ([PC, disk("zd0", 8 * GB, tran=None)], "zd0", "virtual", False),
    "an optical drive on USB": (
        [PC, on("sr0", "rom", rm=1, hotplug=1, tran="usb")], "sr0", "kind", False),
}  # fmt: skip

GOOD = {
    "a card beside a laptop's eMMC": (
        [disk("mmcblk0", 64 * GB, part("mmcblk0p1", at="/"), tran=None, hotplug=1),
         sd("mmcblk0boot0", 4 << 20), sd("mmcblk1", 32 * GB)], "mmcblk1"),
    "the largest card": ([LUKS_PC, sd("mmcblk0", LARGEST)], "mmcblk0"),
    "the smallest card": ([PC, usb("sdb", IMAGE)], "sdb"),
    "a reader's second slot": ([PC, usb("sdb", 0), usb("sdc", 32 * GB)], "sdc"),
    "a card with an old system": (
        [PC, usb("sdb", 32 * GB, part("sdb1", fstype="vfat", label="bootfs"),
                 part("sdb2", fstype="ext4", label="rootfs"))], "sdb"),
}  # fmt: skip


def seen(nodes, name, dialect) -> tuple[Disk, tuple[Disk, ...]]:
    disks = parse_disks(DIALECTS[dialect](nodes))
    return find(disks, name), disks


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", DANGEROUS)
def test_a_dangerous_target_is_refused(case, dialect):
    nodes, name, code, forcible = DANGEROUS[case]
    target, disks = seen(nodes, name, dialect)
    found = objections(target, disks, IMAGE)
    assert code in {o.code for o in found}
    assert not may_flash(found, forced=False)
    assert may_flash(found, forced=True) is forcible


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", GOOD)
def test_a_card_is_accepted(case, dialect):
    nodes, name = GOOD[case]
    target, disks = seen(nodes, name, dialect)
    assert objections(target, disks, IMAGE) == ()


@pytest.mark.parametrize("name", ["swap", "virtual-machine"])
def test_nothing_of_a_recorded_machine_without_a_card_is_accepted(name):
    disks = parse_disks((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    rows = candidates(disks)
    assert rows
    assert all(not may_flash(found, forced=False) for _, found in rows)


def test_a_recorded_loop_device_is_refused_as_swap():
    disks = parse_disks((RECORDED / "swap.json").read_text(encoding="utf-8"))
    assert {o.code for o in objections(find(disks, "loop0"), disks, loops=True)} == {"swap"}


def test_every_device_of_the_system_disk_is_refused_for_that():
    disks = parse_disks(modern([LUKS_PC, usb()]))
    for name in ("nvme0n1", "nvme0n1p1", "nvme0n1p3", "dm-0", "dm-1"):
        assert objections(find(disks, name), disks)[0].code == "system"


def test_the_gravest_objection_comes_first():
    target, disks = seen([PC], "sda", "modern")
    found = objections(target, disks)
    assert [o.forcible for o in found] == sorted(o.forcible for o in found)
    assert found[0].code == "system"


def test_a_loop_device_is_a_target_for_tests_only_and_only_while_free():
    disks = parse_disks(modern([PC, on("loop1", "loop"), on("loop2", "loop", at="/mnt")]))
    assert objections(find(disks, "loop1"), disks, loops=True) == ()
    assert {o.code for o in objections(find(disks, "loop2"), disks, loops=True)} == {"mounted"}


def test_candidates_are_whole_devices_good_ones_first():
    disks = parse_disks(modern([PC, on("loop1", "loop"), usb()]))
    assert [(d.name, bool(found)) for d, found in candidates(disks)] == [
        ("sdb", False), ("sda", True),
    ]  # fmt: skip
    assert {d.name for d, _ in candidates(disks, loops=True)} == {"sda", "sdb", "loop1"}


def test_contents_name_file_systems_and_labels():
    nodes, name = GOOD["a card with an old system"]
    assert seen(nodes, name, "modern")[0].contents == "vfat bootfs, ext4 rootfs"
    assert seen([usb(pttype="dos")], "sdb", "old")[0].contents == "dos partition table"
    assert seen([usb()], "sdb", "flat")[0].contents == "nothing recognized"


def test_a_link_names_its_device(tmp_path):
    link = tmp_path / "by-id"
    link.symlink_to("/dev/sdb")
    assert find(parse_disks(modern([PC, usb()])), str(link)).name == "sdb"


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"blockdevices": [{"name": "sda"}]}', '{"blockdevices": [3]}',
     '{"blockdevices": [{"name": "a", "type": "disk", "size": "big"}]}',
     '{"blockdevices": [{"name": "a", "pkname": "b", "type": "disk", "size": 1},'
     ' {"name": "b", "pkname": "a", "type": "disk", "size": 1}]}'],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_a_sentence(text):
    with pytest.raises(ImageError, match="lsblk's answer cannot be read"):
        parse_disks(text)


def test_an_unknown_device_is_a_sentence():
    with pytest.raises(ImageError, match="sdx is no block device"):
        find(parse_disks(modern([PC])), "sdx")
