"""From a configured Debian to the trees of an image: settings, payload, boot files."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from boards.image.initrd import make_initrd
from boards.image.wheels import Wheel, compile_all, unzip_wheels
from boards.onboard.place import SITE, place_code
from boards.onboard.settings import FILE, Settings
from edge_kit.errors import ImageError

__all__ = ["boot_tree", "clamp_times", "clean", "data_tree", "system_files"]

CMDLINE = "console=tty0 console=ttyS1,115200 root=LABEL=EDGEROOT rw rootwait fsck.repair=yes\n"
_FSTAB = """\
LABEL=EDGEROOT / ext4 noatime,errors=remount-ro 0 1
LABEL=EDGEBOOT /boot/firmware vfat noatime,umask=0077,nofail,x-systemd.device-timeout=300 0 2
LABEL=EDGEDATA /var/lib/edge-kit ext4 noatime,nofail,x-systemd.device-timeout=300 0 2
"""
# They would wear the card, need what an offline board lacks, or write at odd moments.
_MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer",
    "fstrim.timer", "e2scrub_reap.service",
)  # fmt: skip
_LEFT_OVERS = (
    "etc/resolv.conf", "etc/passwd-", "etc/group-",
    "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-", "var/cache/ldconfig/aux-cache",
    "var/lib/dbus/machine-id", "var/lib/systemd/random-seed", "var/lib/systemd/catalog/database",
    "var/lib/dpkg/status-old", "var/lib/dpkg/available-old", "var/cache/debconf/config.dat-old",
    "var/cache/debconf/templates.dat-old", "var/lib/dpkg/lock", "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/triggers/Lock",
)  # fmt: skip


def system_files(root: Path, package: Path, wheels: list[Wheel], python: str) -> None:
    """Write what makes the system a board's, and place the code.

    Args:
        root: The configured root file system.
        package: The directory of ``edge_kit``.
        wheels: What it needs.
        python: Of the board, such as ``3.11``.
    """
    for name, text in (
        ("etc/fstab", _FSTAB),
        ("etc/hostname", "edge\n"),
        ("etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n127.0.1.1\tedge\n"),
        ("etc/machine-id", ""),  # empty: made at the first boot (machine-id(5))
    ):
        (root / name).write_text(text, encoding="ascii")
    units = root / "etc/systemd/system"
    for unit in _MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    for folder in ("var/lib/edge-kit", "etc/edge-kit"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    unzip_wheels(wheels, root / SITE)
    place_code(root, package)
    compile_all(root / "usr/lib/edge-kit", root, python)


def clean(root: Path, epoch: int) -> None:
    """Remove what belongs to the build and not to the image: keys, caches, logs, dates."""
    for name in _LEFT_OVERS:
        (root / name).unlink(missing_ok=True)
    for pattern in (
        "etc/ssh/ssh_host_*", "var/lib/apt/lists/*", "var/cache/apt/*", "run/*", "boot/firmware/*",
    ):  # fmt: skip
        for path in root.glob(pattern):
            _remove(path)
    for path in (root / "var/log").rglob("*"):
        if path.is_file():
            path.unlink()
    # The day of the last password change is the build's.
    shadow = root / "etc/shadow"
    rows = [line.split(":") for line in shadow.read_text(encoding="ascii").splitlines()]
    for row in rows:
        row[2] = str(epoch // 86400)
    shadow.write_text("".join(":".join(row) + "\n" for row in rows), encoding="ascii")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def boot_tree(root: Path, boot: Path, settings: Settings, firmware: bool) -> str:
    """Fill the boot partition's tree; return the kernel's release.

    Args:
        root: The root file system.
        boot: An empty directory.
        settings: Written as ``edge-kit.toml``, secrets included.
        firmware: Whether a Raspberry Pi should be able to start from it.

    Raises:
        ImageError: The root file system has no kernel, or more than one.
    """
    kernels = sorted((root / "boot").glob("vmlinuz-*"))
    if len(kernels) != 1:
        raise ImageError(f"{root} has {len(kernels)} kernels instead of one")
    release = kernels[0].name.removeprefix("vmlinuz-")
    shutil.copyfile(kernels[0], boot / "vmlinuz")
    make_initrd(root, release, boot / "initrd.img")
    trees = root / f"usr/lib/linux-image-{release}/broadcom"
    for tree in sorted(trees.glob("bcm2*.dtb")):
        shutil.copyfile(tree, boot / tree.name)
    (boot / "cmdline.txt").write_text(CMDLINE, encoding="ascii")
    (boot / FILE).write_text(settings.whole(), encoding="utf-8")
    if firmware:
        for path in sorted((root / "usr/lib/raspi-firmware").iterdir()):
            # Debug and cut-down variants of the firmware are chosen by hand, and never here.
            if path.is_file() and not path.stem.endswith(("db", "cd", "x")):
                shutil.copyfile(path, boot / path.name)
        config = "arm_64bit=1\nenable_uart=1\nupstream_kernel=1\n"
        config += "kernel=vmlinuz\ninitramfs initrd.img followkernel\n"
        (boot / "config.txt").write_text(config, encoding="ascii")
    return release


def data_tree(root: Path, data: Path, bundle: Path, model: str, photos: Path | None) -> None:
    """Fill the data partition's tree: bundles, photos, and the service's spool."""
    place = data / "bundles" / model
    shutil.copytree(bundle, place)
    (data / "bundles/current").symlink_to(model)
    if photos is not None:
        shutil.copytree(photos, data / "photos")
    (data / "spool").mkdir()
    passwd = (root / "etc/passwd").read_text(encoding="ascii")
    owner = re.search(r"^edge-kit:[^:]*:(\d+):(\d+):", passwd, re.M)
    if owner is None:
        raise ImageError("the image has no user edge-kit: systemd-sysusers made none")
    user, group = int(owner[1]), int(owner[2])
    for path in (data, *data.rglob("*")):
        # The service writes its spool only; the rest it reads by its group.
        mine = user if path == data / "spool" else 0
        os.chown(path, mine, group, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o750 if path.is_dir() else 0o640)


def clamp_times(tree: Path, epoch: int) -> None:
    """Let nothing be younger than `epoch`; that is when the build, not the file, was made."""
    for path in (tree, *tree.rglob("*")):
        when = min(int(path.lstat().st_mtime), epoch)
        os.utime(path, (when, when), follow_symlinks=False)
