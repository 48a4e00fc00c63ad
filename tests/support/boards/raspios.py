"""A bootable system with the layout and the habits of Raspberry Pi OS, made of Debian's packages.

What its images do at their first start is rebuilt from the public sources of pi-gen, raspberrypi-
sys-mods and userconf-pi, in words of our own: a new disk id (and with it other PARTUUIDs in fstab
and cmdline.txt), SSH disabled, radios blocked, a dialogue that waits for a user's name, and,
in Trixie, cloud-init. Kernel and RAM disk are Debian's, since QEMU's `virt` needs its drivers; they
bear the names of Raspberry Pi's.

    python -m tests.support.boards.raspios bookworm stock.img
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from boards.commands.build import default_cache
from boards.image.finish import clean
from boards.image.packages import BASE, Deb, Mirrors, fetch, host_mirrors
from boards.image.partitions import MIB, assemble
from boards.image.rootfs import configure, unpack
from boards.system.namespace import emulate_arm64, run_as_root
from boards.system.tool import call
from tests.support.boards.stock import BOOKWORM, DISK_ID, TRIXIE

__all__ = ["make_raspios"]

_LINES = {"bookworm": BOOKWORM, "trixie": TRIXIE}
_EXTRA = {
    "bookworm": ("initramfs-tools", "rfkill", "sudo", "xz-utils", "zstd"),
    "trixie": (
        "initramfs-tools", "rfkill", "sudo", "xz-utils", "zstd", "cloud-init", "netplan.io",
    ),
}  # fmt: skip
_BOOT_MIB = 512
_SPARE_MIB = 900
_MODULES = (
    "virtio_mmio", "virtio_blk", "virtio_pci", "mmc_block", "bcm2835", "sdhci_iproc", "ext4",
    "crc32c", "vfat", "nls_cp437", "nls_ascii", "nls_utf8",
)  # fmt: skip
# Both generations do this to the card; `$root` and `$boot` are where its file systems are mounted.
_NEW_DISK_ID = """
disk=/dev/$(lsblk -no pkname "$device")
old=$(dd if=$disk bs=4 count=1 skip=110 2>/dev/null | od -An -tx4 | tr -d ' ')
dd if=/dev/urandom of=$disk bs=4 count=1 seek=110 conv=notrunc 2>/dev/null
new=$(dd if=$disk bs=4 count=1 skip=110 2>/dev/null | od -An -tx4 | tr -d ' ')
sed -i "s/$old/$new/g" $root/etc/fstab $boot/cmdline.txt
"""
# Bookworm: cmdline.txt has init=/usr/lib/raspberrypi-sys-mods/firstboot.
_FIRSTBOOT = f"""#!/bin/sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t tmpfs tmp /run
mount -o remount,rw /
root= boot=/boot/firmware
mount $boot
sed -i 's| init=/usr/lib/raspberrypi-sys-mods/firstboot||; s| quiet||' $boot/cmdline.txt
device=$(findmnt -no SOURCE /)
{_NEW_DISK_ID}
rm -f /etc/ssh/ssh_host_*
ssh-keygen -A
echo "stock firstboot: disk id $old is now $new" >/dev/console
sync
umount $boot
mount -o remount,ro /
reboot -f
"""
# Trixie: cmdline.txt has `resize`, which its RAM disk looks for.
_RESIZE = f"""#!/bin/sh
[ "$1" = prereqs ] && exit 0
grep -q ' resize' /proc/cmdline || exit 0
root=$rootmnt boot=/run/card device=$ROOT
[ -b "$device" ] || device=$(readlink -f /dev/disk/by-partuuid/${{ROOT#PARTUUID=}})
mkdir -p $boot
mount -o remount,rw $root
mount -t vfat /dev/$(lsblk -no pkname "$device")1 $boot
{_NEW_DISK_ID}
sed -i 's| resize||' $boot/cmdline.txt
echo "stock initramfs: disk id $old is now $new" >/dev/console
umount $boot
mount -o remount,ro $root
exit 0
"""
_RESIZE_HOOK = """#!/bin/sh
[ "$1" = prereqs ] && exit 0
. /usr/share/initramfs-tools/hook-functions
for program in dd grep lsblk mkdir mount od readlink sed tr umount; do
  rm -f "$DESTDIR/usr/bin/$program" "$DESTDIR/bin/$program"
  copy_exec /usr/bin/$program /usr/bin/$program
done
"""
_USERCONFIG = """[Unit]
Description=User configuration dialog
After=systemd-user-sessions.service
[Service]
Type=oneshot
ExecStart=/bin/sh -c "read name"
StandardInput=tty
TTYPath=/dev/tty8
TTYReset=yes
TTYVHangup=yes
[Install]
WantedBy=multi-user.target
"""
_CLOUD = """datasource_list: [NoCloud, None]
datasource: {NoCloud: {seedfrom: "file:///boot/firmware"}}
ssh_deletekeys: false
ssh_genkeytypes: []
"""
_SEEDS = {
    "meta-data": "dsmode: local\ninstance_id: rpios-image\n",
    "user-data": "#cloud-config\n# nothing asked for\n",
    "network-config": "# nothing asked for\n",
}


def make_raspios(codename: str, out: Path) -> Path:
    """Build a stock image; takes some minutes.

    Args:
        codename: ``bookworm`` or ``trixie``.
        out: The image, ``.img``.
    """
    mirrors = host_mirrors()
    mirrors = Mirrors(mirrors.main, mirrors.security, codename)
    cache = default_cache() if codename == "bookworm" else default_cache() / codename
    debs = fetch(BASE + _EXTRA[codename], mirrors, cache, _say)
    work = out.parent / f".{codename}"
    work.mkdir(parents=True)
    try:
        plan = work / "plan.json"
        plan.write_text(json.dumps([asdict(deb) for deb in debs], default=str), encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "tests.support.boards.raspios",
            "--inside",
            codename,
            str(work),
        ]
        if run_as_root(command):
            raise RuntimeError("the stock system was not made; see above")
        assemble([work / "boot.fat", work / "root.ext4"], ["c", "83"], out)
        call(["sfdisk", "--disk-id", out, f"0x{DISK_ID}"])
    finally:
        if os.geteuid() != 0:
            run_as_root(["/bin/rm", "-rf", str(work)])
        shutil.rmtree(work, ignore_errors=True)
    return out


def _inside(codename: str, work: Path) -> None:
    """Make both file systems, as root of a namespace."""
    os.umask(0o022)
    rows = json.loads((work / "plan.json").read_text(encoding="utf-8"))
    debs = [Deb(**row | {"path": Path(row["path"])}) for row in rows]
    root, boot = work / "root", work / "boot"
    for folder in (root, boot):
        folder.mkdir()
    emulate_arm64()
    epoch = unpack(debs, root, _say)
    # Minutes under emulation, for files that the system makes itself when it misses them.
    slow = [p for p in (root / "usr/bin/py3compile", root / "usr/bin/systemd-hwdb") if p.exists()]
    for program in slow:
        call(["mount", "--bind", root / "usr/bin/true", program])
    configure(root, epoch, _say)
    for program in slow:
        call(["umount", program])
    clean(root, epoch)
    release = next((root / "boot").glob("vmlinuz-*")).name.removeprefix("vmlinuz-")
    _habits(root, codename)
    _say("making the RAM disk")
    _ram_disk(root, release)
    _boot_files(root, boot, codename, release)
    _say("making file systems")
    fat, ext4 = work / "boot.fat", work / "root.ext4"
    call(["mkfs.vfat", "-F", "32", "-n", "bootfs", "-C", fat, str(_BOOT_MIB * 1024)])
    call(["mcopy", "-s", "-i", fat, *sorted(boot.iterdir()), "::/"])
    used = sum(p.lstat().st_size // 4096 * 4096 + 4352 for p in root.rglob("*")) // MIB
    size = f"{int(used * 1.1) + _SPARE_MIB}M"
    call(["mke2fs", "-q", "-t", "ext4", "-L", "rootfs", "-d", root, ext4, size])


def _habits(root: Path, codename: str) -> None:
    lib = root / "usr/lib/raspberrypi-sys-mods"
    files = {
        "etc/fstab": "proc /proc proc defaults 0 0\n"
        f"PARTUUID={DISK_ID}-01 /boot/firmware vfat defaults 0 2\n"
        f"PARTUUID={DISK_ID}-02 / ext4 defaults,noatime 0 1\n",
        "etc/hostname": "raspberrypi\n",
        "etc/hosts": "127.0.0.1\tlocalhost\n127.0.1.1\traspberrypi\n",
        "etc/machine-id": "",
        # Not a habit of theirs: 90 s for a disk to appear are few in an emulator on a busy machine.
        "etc/systemd/system.conf.d/emulated.conf": "[Manager]\nDefaultDeviceTimeoutSec=900\n"
        "DefaultTimeoutStartSec=900\n",
        "etc/modprobe.d/rfkill_default.conf": "options rfkill default_state=0\n",
        "var/lib/NetworkManager/NetworkManager.state": "[main]\nWirelessEnabled=false\n",
        "usr/lib/systemd/system/userconfig.service": _USERCONFIG,
        "etc/initramfs-tools/modules": "\n".join(_MODULES) + "\n",
    }
    if codename == "trixie":
        files["etc/cloud/cloud.cfg.d/99_raspberry-pi.cfg"] = _CLOUD
        files["etc/initramfs-tools/scripts/local-bottom/stock_resize"] = _RESIZE
        files["etc/initramfs-tools/hooks/stock_resize"] = _RESIZE_HOOK
    else:
        files[str((lib / "firstboot").relative_to(root))] = _FIRSTBOOT
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    (wants / "userconfig.service").symlink_to("/usr/lib/systemd/system/userconfig.service")
    call(["chroot", root, "systemctl", "disable", "ssh"])


def _ram_disk(root: Path, release: str) -> None:
    config = root / "etc/initramfs-tools/initramfs.conf"
    text = config.read_text(encoding="utf-8").replace("MODULES=most", "MODULES=list")
    config.write_text(text, encoding="utf-8")
    call(["depmod", "-b", root, release])
    call(["mount", "-t", "proc", "proc", root / "proc"])
    call(["mount", "--rbind", "/dev", root / "dev"])
    try:
        call(["chroot", root, "mkinitramfs", "-o", "/boot/initramfs8", release])
    finally:
        call(["umount", "--lazy", root / "dev"])
        call(["umount", root / "proc"])


def _boot_files(root: Path, boot: Path, codename: str, release: str) -> None:
    kernel = (root / f"boot/vmlinuz-{release}").read_bytes()
    packed = kernel if kernel[:2] == b"\x1f\x8b" else gzip.compress(kernel, 1, mtime=0)
    (boot / "kernel8.img").write_bytes(packed)
    shutil.move(root / "boot/initramfs8", boot / "initramfs8")
    trees = root / f"usr/lib/linux-image-{release}/broadcom"
    for tree in sorted(trees.glob("bcm2*.dtb")):
        shutil.copyfile(tree, boot / tree.name)
    (boot / "overlays").mkdir()
    (boot / "overlays/README").write_text("none here\n", encoding="ascii")
    (boot / "cmdline.txt").write_text(_LINES[codename] + "\n", encoding="ascii")
    config = "camera_auto_detect=1\nauto_initramfs=1\narm_64bit=1\n"
    (boot / "config.txt").write_text(config, encoding="ascii")
    for name, text in _SEEDS.items() if codename == "trixie" else ():
        (boot / name).write_text(text, encoding="ascii")


def _say(text: str) -> None:
    sys.stderr.write(f"stock: {text}\n")


if __name__ == "__main__":
    if sys.argv[1] == "--inside":
        try:
            _inside(sys.argv[2], Path(sys.argv[3]))
        except subprocess.SubprocessError as error:
            sys.exit(str(error))
    else:
        make_raspios(sys.argv[1], Path(sys.argv[2]))
