"""Which disks may be overwritten, on machines of all kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from boards.disks import Disk, find, parse_disks
from boards.guards import LARGEST, candidates, may_flash, objections
from boards.reading import parse_blkid
from edge_kit.errors import ImageError
from tests.lsblk import DIALECTS, GB, disk, modern, on, part, sd, usb

IMAGE = 4 * GB
RECORDED = Path(__file__).parent / "data/lsblk"

PC = disk("sda", 500 * GB, part("sda1", at="/boot/efi", fstype="vfat"), part("sda2", at="/"))
LV_ROOT = on("vg-root", "lvm", kname="dm-1", at="/", fstype="ext4")
LUKS_PC = disk(
    "nvme0n1", 1000 * GB,
    part("nvme0n1p1", at="/boot"),
    part("nvme0n1p3", GB, on("luks-1", "crypt", LV_ROOT, kname="dm-0", fstype="LVM2_member"),
         fstype="crypto_LUKS"),
    tran="nvme",
)  # fmt: skip
MD_ROOT = on("md0", "raid1", at="/", fstype="ext4")
RAID_A = disk("sda", 500 * GB, part("sda1", GB, MD_ROOT, fstype="linux_raid_member"))
RAID_B = disk("sdb", 500 * GB, part("sdb1", GB, MD_ROOT, fstype="linux_raid_member"))
MPATH = on("mpatha", "mpath", on("mpatha-part1", "part", kname="dm-5", at="/data"), kname="dm-4")
PI = sd("mmcblk0", 32 * GB, part("mmcblk0p1", at="/boot/firmware"), part("mmcblk0p2", at="/"))

# Machine, target, objection expected, whether --force-device may overrule it.
DANGEROUS = {
    "system on SATA": ([PC], "sda", "system", False),
    "system on NVMe": (
        [disk("nvme0n1", 500 * GB, part("nvme0n1p1", at="/"), tran="nvme")],
        "nvme0n1", "system", False),
    "system on a virtual disk without partitions": (
        [disk("vda", 20 * GB, tran=None, mounts=("/",))], "vda", "system", False),
    "system on LVM on LUKS": ([LUKS_PC], "nvme0n1", "system", False),
    "the encrypted partition of it": ([LUKS_PC], "nvme0n1p3", "system", False),
    "its mapping": ([LUKS_PC], "/dev/dm-0", "system", False),
    "its logical volume": ([LUKS_PC], "/dev/dm-1", "system", False),
    "system on RAID, first disk": ([RAID_A, RAID_B], "sda", "system", False),
    "system on RAID, second disk": ([RAID_A, RAID_B], "sdb", "system", False),
    "the array itself": ([RAID_A, RAID_B], "md0", "system", False),
    "a partition of the system disk": ([PC], "sda1", "system", False),
    "a Pi that booted from its card": ([PI], "mmcblk0", "system", False),
    "a removable stick with the system on it": (
        [usb("sda", 64 * GB, part("sda1", at="/boot/firmware"), part("sda2", at="/"))],
        "sda", "system", False),
    "a live system's stick": (
        [usb("sda", 16 * GB, part("sda1", at="/run/live/medium", fstype="iso9660")), PC],
        "sda", "system", False),
    "a stick that holds /boot only": (
        [usb("sdb", 8 * GB, part("sdb1", at="/boot")), PC], "sdb", "system", False),
    "a stick that holds /usr": (
        [usb("sdb", 8 * GB, part("sdb1", at="/usr")), PC], "sdb", "system", False),
    "an EFI partition on a second disk": (
        [PC, disk("sdb", 500 * GB, part("sdb1", at="/boot/efi"))], "sdb", "system", False),
    "Fedora's ostree": (
        [disk("sda", 500 * GB, part("sda3", at="/sysroot")), PC], "sda", "system", False),
    "root on btrfs of two disks, the silent one": (
        [disk("sda", 500 * GB, fstype="btrfs", uuid="b-1", mounts=("/",)),
         usb("sdb", 64 * GB, fstype="btrfs", uuid="b-1")], "sdb", "pool", False),
    "a btrfs partition of a mounted pool": (
        [PC, usb("sdb", 64 * GB, part("sdb1", fstype="btrfs", uuid="b-2")),
         usb("sdc", 64 * GB, part("sdc1", at="/data", fstype="btrfs", uuid="b-2"))],
        "sdb", "pool", False),
    "root on ZFS": (
        [disk("sda", 500 * GB, part("sda1", at="/boot/efi"), part("sda2", fstype="zfs_member"))],
        "sda", "silent", False),
    "a USB disk in a ZFS pool": (
        [PC, usb("sdb", 64 * GB, part("sdb1", fstype="zfs_member"), part("sdb9"))],
        "sdb", "silent", False),
    "a Ceph disk": ([PC, usb("sdb", 64 * GB, fstype="ceph_bluestore")], "sdb", "silent", False),
    "a bcache backing disk": (
        [PC, usb("sdb", 64 * GB, disk("bcache0", 64 * GB, tran=None, mounts=("/srv",)),
                 fstype="bcache")], "sdb", "held", False),
    "a mounted card": ([PC, usb("sdb", 32 * GB, part("sdb1", at="/media/u/bootfs"))],
                       "sdb", "mounted", False),
    "a card mounted without partitions": ([PC, usb("sdb", 32 * GB, mounts=("/mnt",))],
                                          "sdb", "mounted", False),
    "a mounted second partition": (
        [PC, sd("mmcblk0", 32 * GB, part("mmcblk0p1"), part("mmcblk0p2", at="/media/u/rootfs"))],
        "mmcblk0", "mounted", False),
    "swap in use": ([PC, usb("sdb", 32 * GB, part("sdb1", at="[SWAP]", fstype="swap"))],
                    "sdb", "swap", False),
    "swap on the whole device": ([PC, usb("sdb", 32 * GB, mounts=("[SWAP]",))],
                                 "sdb", "swap", False),
    "an open LUKS container": (
        [PC, usb("sdb", 32 * GB, part("sdb1", GB, on("c", "crypt", kname="dm-9"),
                                      fstype="crypto_LUKS"))], "sdb", "held", False),
    "an active volume group": (
        [PC, usb("sdb", 32 * GB, on("vg-x", "lvm", kname="dm-2"), fstype="LVM2_member")],
        "sdb", "held", False),
    "a member of a running array": (
        [PC, usb("sdb", 32 * GB, on("md1", "raid5"), fstype="linux_raid_member")],
        "sdb", "held", False),
    "a path of a multipath disk": ([PC, disk("sdb", 500 * GB, MPATH)], "sdb", "mounted", False),
    "a stopped array's member": (
        [PC, usb("sdb", 32 * GB, fstype="linux_raid_member")], "sdb", "member", True),
    "a volume group's spare disk": (
        [PC, usb("sdb", 32 * GB, part("sdb1", fstype="LVM2_member"))], "sdb", "member", True),
    "a closed LUKS stick": (
        [PC, usb("sdb", 32 * GB, part("sdb1", fstype="crypto_LUKS"))], "sdb", "member", True),
    "a BitLocker stick": ([PC, usb("sdb", 32 * GB, part("sdb1", fstype="BitLocker"))],
                          "sdb", "member", True),
    "a firmware RAID's disk": (
        [PC, disk("sdb", 200 * GB, fstype="isw_raid_member")], "sdb", "member", True),
    "a VMware volume": ([PC, usb("sdb", 32 * GB, fstype="VMFS_volume_member")],
                        "sdb", "member", True),
    "a stick with a snapshot store": (
        [PC, usb("sdb", 32 * GB, part("sdb1", fstype="DM_snapshot_cow"))], "sdb", "member", True),
    "a locked card": ([PC, usb("sdb", 32 * GB, ro=1)], "sdb", "read-only", False),
    "a small card": ([PC, usb("sdb", 2 * GB)], "sdb", "small", False),
    "a card one byte too small": ([PC, usb("sdb", IMAGE - 1)], "sdb", "small", False),
    "a reader without a card": ([PC, usb("sdb", 0)], "sdb", "empty", False),
    "a partition of a card": ([PC, usb("sdb", 32 * GB, part("sdb1", 31 * GB))],
                              "sdb1", "partition", False),
    "a USB disk of 2 TB": ([PC, usb("sdb", 2000 * GB, rm=0)], "sdb", "large", True),
    "a USB disk just too large": ([PC, usb("sdb", LARGEST + 1)], "sdb", "large", True),
    "a second SATA disk": ([PC, disk("sdb", 200 * GB)], "sdb", "fixed", True),
    "Windows on a second NVMe disk": (
        [PC, disk("nvme0n1", 250 * GB, part("nvme0n1p1", fstype="ntfs"), tran="nvme")],
        "nvme0n1", "fixed", True),
    "a SATA disk in a hot-swap bay": ([PC, disk("sdb", 200 * GB, rm=1, hotplug=1)],
                                      "sdb", "fixed", True),
    "an iSCSI volume": ([PC, disk("sdb", 100 * GB, tran="iscsi", rm=0)], "sdb", "fixed", True),
    "a volume over Fibre Channel": ([PC, disk("sdb", 100 * GB, tran="fc")], "sdb", "fixed", True),
    "a second virtual disk": ([PC, disk("vdb", 100 * GB, tran=None)], "vdb", "fixed", True),
    "a SCSI disk of a virtual machine": ([PC, disk("sdb", 100 * GB, tran="spi")],
                                         "sdb", "fixed", True),
    "soldered eMMC": (
        [PC, sd("mmcblk1", 32 * GB), sd("mmcblk1boot0", 4 << 20, ro=1)], "mmcblk1", "emmc", True),
    "the boot area of eMMC": (
        [PC, sd("mmcblk1", 32 * GB), sd("mmcblk1boot0", 5 * GB)],
        "mmcblk1boot0", "emmc-boot", False),
    "a loop device of a snap": (
        [PC, on("loop0", "loop", at="/snap/core/1", ro=1)], "loop0", "mounted", False),
    "a free loop device": ([PC, on("loop1", "loop")], "loop1", "kind", False),
    "compressed memory as swap": (
        [PC, disk("zram0", 8 * GB, tran=None, mounts=("[SWAP]",))], "zram0", "virtual", False),
    "a free RAM disk": ([PC, disk("ram0", 8 * GB, tran=None)], "ram0", "virtual", False),
    "a network block device": ([PC, disk("nbd0", 8 * GB, tran=None)], "nbd0", "virtual", False),
    "a volume of a ZFS pool": ([PC, disk("zd0", 8 * GB, tran=None)], "zd0", "virtual", False),
    "an optical drive": (
        [PC, on("sr0", "rom", rm=1, hotplug=1, tran="usb")], "sr0", "kind", False),
    "a container that sees no mounts": ([usb("sdb", 32 * GB, part("sdb1"))], "sdb", "blind", True),
}  # fmt: skip

GOOD = {
    "a card in a USB reader": ([PC, usb()], "sdb"),
    "a card with an old system": (
        [PC, usb("sdb", 32 * GB, part("sdb1", fstype="vfat", label="bootfs"),
                 part("sdb2", fstype="ext4", label="rootfs"))], "sdb"),
    "a card in a laptop's slot": ([PC, sd("mmcblk0", 128 * GB)], "mmcblk0"),
    "a card beside a laptop's eMMC": (
        [disk("mmcblk0", 64 * GB, part("mmcblk0p1", at="/"), tran=None, hotplug=1),
         sd("mmcblk0boot0", 4 << 20), sd("mmcblk1", 32 * GB)], "mmcblk1"),
    "the largest card": ([LUKS_PC, sd("mmcblk0", LARGEST)], "mmcblk0"),
    "the smallest card": ([PC, usb("sdb", IMAGE)], "sdb"),
    "a USB disk of 128 GB": ([PC, usb("sdb", 128 * GB, rm=0)], "sdb"),
    "a card on a Pi that booted from USB": (
        [disk("sda", 128 * GB, part("sda2", at="/"), tran="usb", hotplug=1), sd()], "mmcblk0"),
    "a reader's second slot": ([PC, usb("sdb", 0), usb("sdc", 32 * GB)], "sdc"),
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


def test_the_table_is_as_long_as_it_claims():
    assert len(DANGEROUS) >= 40


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("case", GOOD)
def test_a_card_is_accepted(case, dialect):
    nodes, name = GOOD[case]
    target, disks = seen(nodes, name, dialect)
    assert objections(target, disks, IMAGE) == ()


@pytest.mark.parametrize("file", sorted(RECORDED.glob("*.json")), ids=lambda f: f.stem)
def test_nothing_of_a_recorded_machine_without_a_card_is_accepted(file):
    disks = parse_disks(file.read_text(encoding="utf-8"))
    rows = candidates(disks)
    assert rows
    assert all(not may_flash(found, forced=False) for _, found in rows)


def test_a_recorded_loop_device_is_refused_as_swap():
    disks = parse_disks((RECORDED / "swap.json").read_text(encoding="utf-8"))
    assert {o.code for o in objections(find(disks, "loop0"), disks, loops=True)} == {"swap"}


def test_what_blkid_says_is_read():
    text = "DEVNAME=/dev/sdb1\nLABEL=my\\ card\nUUID=1-2\nTYPE=vfat\n\n"
    assert parse_blkid(text) == {
        "DEVNAME": "/dev/sdb1", "LABEL": "my card", "UUID": "1-2", "TYPE": "vfat",
    }  # fmt: skip
    assert parse_blkid("") == {}


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
