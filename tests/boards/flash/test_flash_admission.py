"""Which target passes, read again at each step; on trees of disks, without any device."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from boards.flash.admission import Admission
from boards.flash.disks import Disk, parse_disks
from edge_kit.errors import ImageError, UsageError
from tests.support.lsblk import GB, disk, modern, part, usb

PC = disk("sda", 500 * GB, part("sda1", at="/"), serial="PC")
NEED = 4 * GB


class Machine:
    """Disks that may change between two readings."""

    def __init__(self, *nodes: object) -> None:
        self.disks: tuple[Disk, ...] = parse_disks(modern(list(nodes)))  # type: ignore[arg-type]

    def admission(self, device="sdb", force=None, serial=None, alone=False) -> Admission:
        return Admission(device, force, serial, loops=False, alone=alone, read=lambda: self.disks)

    def change(self, name: str, **values: object) -> None:
        self.disks = tuple(replace(d, **values) if d.name == name else d for d in self.disks)


@pytest.fixture(autouse=True)
def writable(monkeypatch):
    """There are no such devices here; rights have a test of their own."""
    monkeypatch.setattr(os, "access", lambda *_a, **_o: True)


def test_a_stick_passes_and_the_system_does_not():
    machine = Machine(PC, usb())
    assert machine.admission().look(NEED).path == "/dev/sdb"
    for device in ("sda", "/dev/sda", "sda1"):
        with pytest.raises(ImageError, match="from which this system runs"):
            machine.admission(device, force=device, serial="PC", alone=True).look(NEED)


def test_its_serial_number_lets_only_that_device_pass():
    machine = Machine(PC, usb(serial="A1"), usb("sdc", serial="A2"))
    assert machine.admission(serial="A1", alone=True).look(NEED).name == "sdb"
    with pytest.raises(ImageError, match="has the serial number 'A1', not 'A2'"):
        machine.admission(serial="A2", alone=True).look(NEED)


def test_a_device_without_a_serial_number_is_confirmed_by_name_only():
    machine = Machine(PC, usb(serial=None))
    assert machine.admission().look(NEED).serial == ""
    for serial in ("7", "None", " "):
        with pytest.raises(ImageError, match=r"has no serial number.*type its name when asked"):
            machine.admission(serial=serial, alone=True).look(NEED)


def test_a_serial_number_that_two_devices_have_confirms_neither():
    # As in readers of one batch, and in those with several slots.
    machine = Machine(PC, usb(serial="000000001206"), usb("sdc", 0, serial="000000001206"))
    with pytest.raises(ImageError, match=r"and so has /dev/sdc: it does not tell"):
        machine.admission(serial="000000001206", alone=True).look(NEED)
    assert machine.admission(serial="000000001206").look(NEED).name == "sdb"


def test_forcing_names_the_very_device():
    machine = Machine(PC, disk("sdb", 200 * GB))
    with pytest.raises(ImageError, match="add --force-device sdb"):
        machine.admission().look(NEED)
    with pytest.raises(UsageError, match="both have to name the same"):
        machine.admission(force="sdc").look(NEED)
    assert machine.admission(force="sdb").look(NEED).name == "sdb"


def test_a_link_that_leads_elsewhere_later_is_noticed(tmp_path):
    link = tmp_path / "usb-STORAGE"
    link.symlink_to("/dev/sdb")
    machine = Machine(PC, usb(), usb("sdc", 32 * GB, serial="B"))
    admission = machine.admission(str(link))
    before = admission.look(NEED)
    link.unlink()
    link.symlink_to("/dev/sdc")
    assert admission.look(NEED) != before


@pytest.mark.parametrize(
    "change",
    [{"serial": "B"}, {"size": 33 * GB}, {"model": "X"}, {"number": "1:1"}],
)
def test_a_device_that_was_exchanged_before_it_was_open_is_noticed(change):
    machine = Machine(PC, usb())
    admission = machine.admission()
    target = admission.look(NEED)
    admission.still(target)
    machine.change("sdb", **change)
    with pytest.raises(ImageError, match="changed meanwhile; nothing was written"):
        admission.still(target)
    machine.disks = machine.disks[:1]
    with pytest.raises(ImageError, match="was pulled out; nothing was written"):
        admission.still(target)


def test_being_open_is_no_exchange():
    machine = Machine(PC, usb())
    admission = machine.admission()
    target = admission.look(NEED)
    machine.change("sdb", busy=True, writers=("edge-kit (1)",))
    admission.still(target)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"busy": True}, "in use, though nothing shows by what"),
        ({"writers": ("qemu (7)", "dd (8)")}, r"open for writing in dd \(8\), qemu \(7\)"),
        ({"mounts": ("/media/me",)}, "mounted at /media/me"),
        ({"read_only": True}, "read-only"),
    ],
)
def test_what_begins_between_two_looks_is_noticed_and_not_forcible(change, sentence):
    machine = Machine(PC, usb())
    admission = machine.admission(force="sdb")
    admission.look(NEED)
    machine.change("sdb", **change)
    with pytest.raises(ImageError, match=sentence):
        admission.look(NEED)


@pytest.mark.parametrize("mode", [0o660, 0o600])
def test_who_may_not_write_is_told_what_to_do(tmp_path, monkeypatch, mode):
    node = tmp_path / "sdb"
    node.touch()
    node.chmod(mode)
    machine = Machine(PC, usb())
    machine.change("sdb", path=str(node))
    monkeypatch.setattr(os, "access", lambda *_a, **_o: False)
    monkeypatch.setattr(type(node), "group", lambda _self: "disk")
    with pytest.raises(
        ImageError, match="may not be written by this user; run the same command with sudo"
    ) as caught:
        machine.admission(str(node)).look(NEED)
    assert ("member of the group disk" in str(caught.value)) == (mode == 0o660)
    assert 'sudo "$(command -v edge-kit)"' in str(caught.value)
