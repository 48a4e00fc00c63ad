"""The initial RAM disk: busybox, a few kernel modules and a script, packed without emulation."""

from __future__ import annotations

import gzip
import re
import shutil
import tempfile
from pathlib import Path

from boards.system.tool import call
from edge_kit.errors import ImageError

__all__ = ["MODULES", "make_initrd", "pack_cpio"]

# What finds and mounts the root: QEMU's disk and network, then the card readers of Raspberry Pi 3
# and Zero 2 W (bcm2835, sdhci-iproc) and 4 (sdhci-iproc), then USB disks. What Debian's kernel has
# built in is left out.
MODULES = (
    "virtio_mmio", "virtio_pci", "virtio_blk", "mmc_block", "bcm2835", "sdhci_iproc", "dwc2",
    "xhci_pci", "usb_storage", "uas", "sd_mod", "pcie_brcmstb", "reset_raspberrypi",
    "regulator_fixed", "gpio_regulator", "ext4", "crc32c",
)  # fmt: skip
_APPLETS = ("sh", "mount", "umount", "insmod", "sleep", "findfs", "switch_root", "mkdir", "cat")
_WAIT_S = 120

_INIT = f"""#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
root=LABEL=EDGEROOT
init=/sbin/init
for word in $(cat /proc/cmdline); do
  case $word in root=*) root=${{word#root=}} ;; init=*) init=${{word#init=}} ;; esac
done
while read -r module; do insmod "$module" 2>/dev/null; done < /modules
n=0
while [ $n -lt {_WAIT_S} ]; do
  case $root in
    LABEL=*|UUID=*) device=$(findfs "$root" 2>/dev/null) ;;
    *) if [ -b "$root" ]; then device=$root; fi ;;
  esac
  if [ -n "$device" ]; then break; fi
  sleep 1
  n=$((n + 1))
done
if ! mount -t ext4 -o rw,noatime "$device" /root; then
  echo "edge-kit: $root is not to be found; what is there:"
  cat /proc/partitions
  exec sh
fi
mount -o move /dev /root/dev
umount /proc
umount /sys
exec switch_root /root $init
"""


def make_initrd(root: Path, release: str, out: Path) -> None:
    """Pack the RAM disk of an unpacked root file system.

    Args:
        root: The root; it holds ``busybox-static`` and the kernel's modules.
        release: The kernel's, such as ``6.1.0-40-arm64``.
        out: The file, gzip.

    Raises:
        ImageError: Busybox is missing in `root`, or kmod on this machine.
    """
    busybox = root / "usr/bin/busybox"
    if not busybox.exists():
        raise ImageError(f"busybox is missing in {root}")
    call(["depmod", "-b", root, release])
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        for folder in ("bin", "proc", "sys", "dev", "root", "run", "tmp"):
            (tree / folder).mkdir()
        shutil.copyfile(busybox, tree / "bin/busybox")
        for applet in _APPLETS:
            (tree / "bin" / applet).symlink_to("busybox")
        places = []
        for module in _module_files(root, release):
            place = str(module.relative_to(root))
            (tree / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(module, tree / place)
            places.append(f"/{place}")
        (tree / "modules").write_text("\n".join(places) + "\n", encoding="ascii")
        (tree / "init").write_text(_INIT, encoding="ascii")
        for program in ("init", "bin/busybox"):
            (tree / program).chmod(0o755)
        out.write_bytes(gzip.compress(pack_cpio(tree), 6, mtime=0))


def _module_files(root: Path, release: str) -> list[Path]:
    """Return all modules with what they need, in the order in which they load."""
    files: list[Path] = []
    for module in MODULES:
        try:
            told = call(["modprobe", "-d", root, "-S", release, "--show-depends", module])
        except ImageError:
            continue  # this kernel has none of this name
        for line in told.splitlines():
            # Options may follow the path, and the path may hold spaces.
            found = re.match(r"insmod (.*\.ko(?:\.\w+)?)(?: |$)", line)
            if found and Path(found[1]) not in files:
                files.append(Path(found[1]))
    return files


def pack_cpio(tree: Path) -> bytes:
    """Return a directory as a cpio archive of root's, without times (format ``newc``: cpio(5))."""
    parts = []
    for n, path in enumerate(sorted(tree.rglob("*")), 1):
        if path.is_symlink():
            mode, data = 0o120777, str(path.readlink()).encode()
        elif path.is_dir():
            mode, data = 0o040755, b""
        else:
            mode, data = 0o100000 | path.stat().st_mode & 0o777, path.read_bytes()
        parts.append(_cpio_entry(n, str(path.relative_to(tree)), mode, data))
    parts.append(_cpio_entry(0, "TRAILER!!!", 0, b""))
    return b"".join(parts)


def _cpio_entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    encoded = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08X" % value for value in fields) + encoded
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
