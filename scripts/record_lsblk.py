#!/usr/bin/env python3
"""Record what lsblk and the other witnesses say on machines with many kinds of disks.

    python scripts/record_lsblk.py WORK [MACHINE ...]

Each `tests/support/boards/machines/*.toml` describes a machine: its disks, the commands that
bring about its situations, and what the guards shall say of each device. A Debian guest in QEMU
really performs them (mdadm --create, cryptsetup luksFormat, mount, ...) and runs
`boards.flash.reading`, whose answers become `tests/support/boards/lsblk_recordings/MACHINE.json`.
WORK keeps the guest's root (about 800 MB) between runs.

Needs mmdebstrap, qemu-system-x86_64, qemu-img, depmod, cpio, and root; no KVM, no loop devices.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
MIRROR = "http://deb.debian.org/debian"
HOOK = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
GUEST = "bookworm"
# Other versions of lsblk, run with their own libraries on the guest's kernel.
OTHERS = ("bullseye", "trixie")
PACKAGES = (
    "bash,dash,coreutils,util-linux,mount,sed,grep,findutils,mawk,kmod,procps,udev,libc-bin,linux-image-amd64,mdadm,"
    "lvm2,cryptsetup-bin,btrfs-progs,xfsprogs,e2fsprogs,dosfstools,exfatprogs,ntfs-3g,f2fs-tools,"
    "bcache-tools,dmsetup,thin-provisioning-tools,python3,squashfs-tools,fdisk,genisoimage"
)
# Kernel modules and files that no situation needs.
SPARE = (
    "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/zoneinfo", "usr/share/perl",
    "usr/lib/x86_64-linux-gnu/perl", "usr/lib/x86_64-linux-gnu/gconv", "boot",
    "usr/lib/udev/hwdb.d",
    "usr/lib/udev/rules.d/64-md-raid-assembly.rules", "usr/lib/udev/rules.d/69-lvm.rules",
    "usr/lib/udev/rules.d/69-bcache.rules",
)  # fmt: skip
DRIVERS = ("ata", "block", "bus", "cdrom", "dax", "hv", "i2c", "md", "mmc", "nvme", "nvdimm",
           "pci", "scsi", "target", "usb", "virtio", "char", "misc")  # fmt: skip
WRAPPER = """#!/bin/sh
t=/recorder/tree-{suite}
exec $t/ld.so --library-path $t/lib/x86_64-linux-gnu:$t/usr/lib/x86_64-linux-gnu $t/lsblk "$@"
"""
TIMEOUT_S = 1500


def call(*command: str | Path, **options: Any) -> None:
    """Say what is run, and run it."""
    print("+", *command, file=sys.stderr)
    subprocess.run([str(c) for c in command], check=True, **options)


def build(work: Path) -> tuple[Path, Path]:
    """Return the guest's kernel and its initial RAM disk; made once."""
    kernel, base = work / "vmlinuz", work / "base.cpio"
    if base.exists():
        return kernel, base
    root = work / "root"
    shutil.rmtree(root, ignore_errors=True)
    call("mmdebstrap", "--variant=extract", HOOK, f"--include={PACKAGES}", GUEST, root,
         f"deb {MIRROR} {GUEST} main")  # fmt: skip
    shutil.copy(next((root / "boot").glob("vmlinuz-*")), kernel)
    modules = next((root / "usr/lib/modules").iterdir())
    for driver in (modules / "kernel/drivers").iterdir():
        if driver.name not in DRIVERS:
            shutil.rmtree(driver)
    for name in ("net", "sound"):
        shutil.rmtree(modules / "kernel" / name)
    call("depmod", "-b", root, modules.name)
    for name in SPARE:
        path = root / name
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    call("ldconfig", "-r", root)
    for link, to in (("usr/bin/awk", "mawk"), ("usr/bin/sh", "dash")):
        (root / link).unlink(missing_ok=True)
        (root / link).symlink_to(to)
    recorder = root / "recorder"
    (recorder / "own").mkdir(parents=True)
    for suite in OTHERS:
        shutil.rmtree(work / suite, ignore_errors=True)
        tree = recorder / f"tree-{suite}"
        call("mmdebstrap", "--variant=extract", HOOK, "--include=util-linux", suite, work / suite,
             f"deb {MIRROR} {suite} main")  # fmt: skip
        for name in ("lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu"):
            (tree / name).mkdir(parents=True, exist_ok=True)
            for file in (work / suite / name).glob("*.so*"):
                shutil.copy2(file, tree / name, follow_symlinks=True)
        shutil.copy2(work / suite / "bin/lsblk", tree)
        # In some releases the linker's usual name is an absolute link.
        linker = min((work / suite / "usr/lib/x86_64-linux-gnu").glob("ld-*.so*"), default=None)
        linker = linker or min((work / suite / "lib/x86_64-linux-gnu").glob("ld-*.so*"))
        shutil.copy2(linker, tree / "ld.so")
        (recorder / suite).mkdir()
        (recorder / suite / "lsblk").write_text(WRAPPER.format(suite=suite))
        (recorder / suite / "lsblk").chmod(0o755)
        shutil.rmtree(work / suite)
    (root / "init").write_text(
        "#!/bin/sh\nexport PATH=/usr/sbin:/usr/bin\nmkdir -p /proc /sys /dev /run /tmp\n"
        "mount -t proc proc /proc\nmount -t sysfs sysfs /sys\nmount -t devtmpfs devtmpfs /dev\n"
        "exec python3 /recorder/guest.py </dev/console >/dev/console 2>&1\n"
    )
    (root / "init").chmod(0o755)
    pack(root, base)
    return kernel, base


def pack(folder: Path, out: Path) -> None:
    """Write a folder as an archive that the kernel unpacks at boot."""
    with out.open("wb") as file:
        subprocess.run("find . | LC_ALL=C sort | cpio --quiet -o -H newc", shell=True,
                       cwd=folder, stdout=file, check=True)  # fmt: skip


def additions(work: Path, machine: dict[str, Any]) -> Path:
    """Pack what differs from run to run: this repository's code and the machine."""
    tree = work / "more"
    shutil.rmtree(tree, ignore_errors=True)
    recorder = tree / "recorder"
    for name in ("boards", "edge_kit"):
        (recorder / name).mkdir(parents=True)
        (recorder / name / "__init__.py").touch()
    for name in ("boards/flash/reading.py", "boards/flash/disks.py", "edge_kit/errors.py"):
        (recorder / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPO / name, recorder / name)
    shutil.copy(REPO / "scripts/record_guest.py", recorder / "guest.py")
    shutil.copy(REPO / "scripts/record_boot.sh", recorder / "boot.sh")
    (recorder / "machine.json").write_text(json.dumps(machine))
    pack(tree, work / "more.cpio")
    return work / "more.cpio"


def attach(name: str, disk: dict[str, Any], at: int, work: Path) -> list[str]:
    """Return QEMU's arguments for one disk; its file is made anew, empty."""
    kind, mib = disk["kind"], disk.get("mib", 0)
    drive = f"if=none,id={name}"
    serial = f",serial={disk['serial']}" if disk.get("serial") else ""
    if mib:
        raw = kind in ("sd", "floppy", "paths")
        file = work / f"{name}.{'raw' if raw else 'qcow2'}"
        file.unlink(missing_ok=True)
        call("qemu-img", "create", "-q", "-f", file.suffix[1:], file, f"{mib}M")
        drive += f",file={file},format={file.suffix[1:]},cache=unsafe"
        if disk.get("locked"):
            drive += ",readonly=on"
    usb = "usb-storage,bus=xhci.0,removable"
    device = {
        "sata": f"ide-hd,bus=ide.{at},drive={name}{serial}",
        "cd": f"ide-cd,bus=ide.{at},drive={name}",
        "nvme": f"nvme,drive={name},serial={disk.get('serial', name)}",
        "virtio": f"virtio-blk-pci,drive={name}{serial}",
        "scsi": f"scsi-hd,bus=scsi.0,drive={name}{serial}",
        "usb": f"{usb}=on,drive={name}{serial}",
        "usb-fixed": f"{usb}=off,drive={name}{serial}",
        "uas": f"scsi-hd,bus=uas-{name}.0,drive={name}{serial}",
        "sd": f"sd-card,drive={name}",
        "floppy": f"floppy,bus=fdc.0,drive={name}",
    }
    if kind == "paths":
        arguments = []
        for path in range(disk["paths"]):
            arguments += ["-drive", f"{drive.replace(name, f'{name}{path}', 1)},file.locking=off",
                          "-device", f"scsi-hd,bus=scsi.0,share-rw=on,drive={name}{path}{serial},"
                                     "wwn=0x5000c50015ea71ac"]  # fmt: skip
        return arguments
    before = {"uas": ["-device", f"usb-uas,id=uas-{name},bus=xhci.0"],
              "sd": ["-device", "sdhci-pci"],
              "floppy": ["-device", "isa-fdc,id=fdc"]}.get(kind, [])  # fmt: skip
    return ["-drive", drive, *before, "-device", device[kind]]


def boot(machine: dict[str, Any], work: Path) -> list[dict[str, Any]]:
    """Run the guest and return what it reported."""
    kernel, base = build(work)
    initrd = work / "initrd.cpio"
    with initrd.open("wb") as out:
        for part in (base, additions(work, machine)):
            out.write(part.read_bytes())
    answers = work / "answers"
    answers.unlink(missing_ok=True)
    arguments: list[str] = []
    at = 0
    for name, disk in machine["disks"].items():
        arguments += attach(name, disk, at, work)
        at += disk["kind"] in ("sata", "cd")
    command = [
        "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", "3072",
        "-nodefaults", "-no-reboot", "-display", "none", "-serial", f"file:{work}/console.log",
        "-kernel", kernel, "-initrd", initrd,
        "-append", "console=ttyS0 panic=-1 quiet net.ifnames=0 raid=noautodetect no_timer_check",
        "-device", "qemu-xhci,id=xhci,p2=15,p3=15", "-device", "virtio-scsi-pci,id=scsi",
        "-device", "virtio-serial-pci", "-chardev", f"file,id=out,path={answers}",
        "-device", "virtserialport,chardev=out,name=out", *arguments,
    ]  # fmt: skip
    call(*command, timeout=TIMEOUT_S)
    rows = [json.loads(line) for line in answers.read_text().splitlines()]
    if not rows or not rows[-1].get("done"):
        sys.exit(f"the guest did not finish; its console is in {work}/console.log")
    return rows[:-1]


def record(file: Path, work: Path) -> None:
    """Boot a machine and write down what it said."""
    machine = tomllib.loads(file.read_text(encoding="utf-8"))
    first, *states = boot(machine, work)
    head = {"guest": f"Debian {GUEST} in QEMU, Linux {first['kernel']}", "names": first["names"]}
    rows = ",\n".join(row_lines(row) for row in states)
    text = f'{json.dumps(head)[:-1]}, "states": [\n{rows}\n]}}\n'
    json.loads(text)
    (REPO / "tests/support/boards/lsblk_recordings" / f"{file.stem}.json").write_text(
        text, encoding="utf-8"
    )


def row_lines(row: dict[str, Any]) -> str:
    """Write one state with a disk (and all that stands on it) to a line, for people to compare."""
    row = {**row, "reading": {**row["reading"]}}
    disks = row["reading"].pop("lsblk")["blockdevices"]
    reading = json.dumps(row.pop("reading"))
    lines = ",\n  ".join(json.dumps(d) for d in disks)
    return (
        f'{json.dumps(row)[:-1]},\n "reading": {reading[:-1]}, "lsblk": {{"blockdevices": [\n  '
        f"{lines}\n ]}}}}}}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("machines", nargs="*")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    for file in sorted((REPO / "tests/support/boards/machines").glob("*.toml")):
        if not asked.machines or file.stem in asked.machines:
            record(file, asked.work.resolve())
