"""QEMU's machines that stand in for boards, as data."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MACHINES", "Machine"]


@dataclass(frozen=True)
class Machine:
    """One of QEMU's machines.

    Attributes:
        options: Its own options; ``{disk}`` and ``{network}`` are filled in.
        console: What the kernel calls the serial line that QEMU writes to the log.
        serials: How many serial lines come before that one.
        tree: Device tree on the boot partition; empty where QEMU brings one.
    """

    options: tuple[str, ...]
    console: str
    serials: int
    tree: str


MACHINES = {
    "virt": Machine(
        ("-M", "virt", "-cpu", "cortex-a72", "-smp", "2", "-m", "1024",
         "-drive", "if=none,id=card,file={disk},format=raw,cache=unsafe",
         "-device", "virtio-blk-device,drive=card",
         "-netdev", "{network}", "-device", "virtio-net-device,netdev=net",
         "-device", "virtio-rng-device"),
        "ttyAMA0", 0, "",
    ),
    "raspi3b": Machine(
        ("-M", "raspi3b", "-m", "1024",
         "-drive", "if=sd,file={disk},format=raw,cache=unsafe",
         "-netdev", "{network}", "-device", "usb-net,netdev=net"),
        "ttyS1,115200", 1, "bcm2837-rpi-3-b.dtb",
    ),
}  # fmt: skip
