"""Which target is admitted, read again at each step; on trees of disks, without any device."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from boards.flash.admission import Admission
from boards.flash.disks import Disk, parse_disks
from edge_kit.errors import ImageError, UsageError
from tests.support.boards.lsblk import GB, answer, disk, part, usb

PC = disk("sda", 500 * GB, part("sda1", at="/"), serial="PC")
NEED = 4 * GB


class Machine:
    """Disks that may change between two readings."""

    def __init__(self, *nodes: object) -> None:
        self.disks: tuple[Disk, ...] = parse_disks(answer(list(nodes)))  # type: ignore[arg-type]

    def admission(self, device="sdb", force=None, serial=None, alone=False) -> Admission:
        return Admission(device, force, serial, loops=False, alone=alone, read=lambda: self.disks)

    def change(self, name: str, **values: object) -> None:
        self.disks = tuple(replace(d, **values) if d.name == name else d for d in self.disks)


@pytest.fixture(autouse=True)
def writable(monkeypatch):
    """There are no such devices here; rights have a test of their own."""
    monkeypatch.setattr(os, "access", lambda *_a, **_o: True)


def test_stick_is_admitted_and_the_system_disk_is_not():
    machine = Machine(PC, usb())
    assert machine.admission().look(NEED).path == "/dev/sdb"
    for device in ("sda", "/dev/sda", "sda1"):
        with pytest.raises(ImageError, match="from which this system runs"):
            machine.admission(device, force=device, serial="PC", alone=True).look(NEED)


def test_serial_number_admits_only_its_device():
    machine = Machine(PC, usb(serial="A1"), usb("sdc", serial="A2"))
    assert machine.admission(serial="A1", alone=True).look(NEED).name == "sdb"
    with pytest.raises(ImageError, match="has the serial number 'A1', not 'A2'"):
        machine.admission(serial="A2", alone=True).look(NEED)


def test_device_without_a_serial_number_is_confirmed_by_name_only():
    machine = Machine(PC, usb(serial=None))
    assert machine.admission().look(NEED).serial == ""
    for serial in ("7", "None", " "):
        with pytest.raises(ImageError, match=r"has no serial number.*type its name when asked"):
            machine.admission(serial=serial, alone=True).look(NEED)


def test_serial_number_of_two_devices_confirms_neither():
    # As in readers of one batch, and in those with several slots.
    machine = Machine(PC, usb(serial="000000001206"), usb("sdc", 0, serial="000000001206"))
    with pytest.raises(ImageError, match=r"and so has /dev/sdc: it does not tell"):
        machine.admission(serial="000000001206", alone=True).look(NEED)
    assert machine.admission(serial="000000001206").look(NEED).name == "sdb"


def test_force_device_names_the_same_device():
    machine = Machine(PC, disk("sdb", 200 * GB))
    with pytest.raises(ImageError, match="add --force-device sdb"):
        machine.admission().look(NEED)
    with pytest.raises(UsageError, match="both have to name the same"):
        machine.admission(force="sdc").look(NEED)
    assert machine.admission(force="sdb").look(NEED).name == "sdb"


def test_link_that_leads_elsewhere_later_is_noticed(tmp_path):
    link = tmp_path / "usb-STORAGE"
    link.symlink_to("/dev/sdb")
    machine = Machine(PC, usb(), usb("sdc", 32 * GB, serial="B"))
    admission = machine.admission(str(link))
    before = admission.look(NEED)
    link.unlink()
    link.symlink_to("/dev/sdc")
    assert admission.look(NEED) != before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"busy": True}, "in use, but nothing shows by what"),
        ({"writers": ("qemu (7)", "dd (8)")}, r"open for writing in dd \(8\), qemu \(7\)"),
        ({"mounts": ("/media/me",)}, "mounted at /media/me"),
        ({"read_only": True}, "read-only"),
    ],
)
def test_use_that_begins_between_two_looks_is_final(change, sentence):
    machine = Machine(PC, usb())
    admission = machine.admission(force="sdb")
    admission.look(NEED)
    machine.change("sdb", **change)
    with pytest.raises(ImageError, match=sentence):
        admission.look(NEED)


def test_user_without_rights_is_told_of_sudo(monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_a, **_o: False)
    with pytest.raises(ImageError, match="may not be written by this user") as caught:
        Machine(PC, usb()).admission().look(NEED)
    assert 'sudo "$(command -v edge-kit)"' in caught.value.hint
