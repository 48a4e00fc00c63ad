"""A Debian root file system for arm64: unpacked natively, then configured once under emulation.

Unpacking under qemu-user would cost most of a build's time, and needs no arm64 program at all, so
each package is unpacked here and registered with dpkg as ``unpacked``; one emulated
``dpkg --configure --pending`` does the rest. What packages' preinst scripts would have done on
an empty system is done by `_stand_in_for_preinst`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boards.image.packages import Deb
from boards.image.shortcuts import shortcuts, trust_authorities
from boards.system.tool import Reporter, call, need
from edge_kit.errors import ImageError

__all__ = ["configure", "unpack"]

# Not needed on a board; dpkg is told, so that later updates leave them out too.
EXCLUDES = ("usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/doc/")
KEPT = "copyright"
_DPKG_CONFIG = (
    "path-exclude=/usr/share/man/*\npath-exclude=/usr/share/info/*\n"
    "path-exclude=/usr/share/locale/*\npath-exclude=/usr/share/doc/*\n"
    "path-include=/usr/share/doc/*/copyright\n"
)
_MERGED = ("bin", "sbin", "lib")


def unpack(debs: list[Deb], root: Path, report: Reporter) -> int:
    """Unpack all packages into an empty directory, as root of a namespace.

    Returns:
        When the newest file in them was made, Unix time.

    Raises:
        ImageError: A package is damaged, or the disk is full.
    """
    for name in _MERGED:
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    info = root / "var/lib/dpkg/info"
    for folder in (info, root / "var/lib/dpkg/updates", root / "var/lib/dpkg/triggers"):
        folder.mkdir(parents=True)
    for name in ("proc", "sys", "dev", "run", "boot/firmware"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "var/lib/dpkg/info/format").write_text("1\n", encoding="ascii")
    (root / "var/lib/dpkg/arch").write_text("arm64\n", encoding="ascii")
    paragraphs, newest = [], 0
    for n, deb in enumerate(debs, 1):
        paragraph, made = _unpack_one(deb, root, info)
        paragraphs.append(paragraph)
        newest = max(newest, made)
        if n % 25 == 0 or n == len(debs):
            report(f"unpacked {n} of {len(debs)} packages")
    (root / "var/lib/dpkg/status").write_text("\n".join(paragraphs), encoding="utf-8")
    (root / "var/lib/dpkg/available").touch()
    config = root / "etc/dpkg/dpkg.cfg.d/edge-kit"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(_DPKG_CONFIG, encoding="ascii")
    _stand_in_for_preinst(root)
    return newest


def _unpack_one(deb: Deb, root: Path, info: Path) -> tuple[str, int]:
    """Unpack one package; return its paragraph of dpkg's status file and its newest file's time."""
    names, newest = _extract(deb, root)
    control = call(["dpkg-deb", "--field", deb.path]).rstrip("\n")
    same = re.search(r"^Multi-Arch: same$", control, re.M)
    base = info / (f"{deb.name}:{deb.arch}" if same else deb.name)
    Path(f"{base}.list").write_text("\n".join(names) + "\n", encoding="utf-8")
    scripts = root / "var/lib/dpkg/edge-kit-control"
    call(["dpkg-deb", "--control", deb.path, scripts])
    conffiles = ""
    for file in sorted(scripts.iterdir()):
        if file.name == "conffiles":
            conffiles = _conffiles(file.read_text(encoding="utf-8"))
        if file.name != "control":
            shutil.move(file, f"{base}.{file.name}")
    shutil.rmtree(scripts)
    first, _, rest = control.partition("\n")
    return f"{first}\nStatus: install ok unpacked\n{rest}\n{conffiles}", newest


def _extract(deb: Deb, root: Path) -> tuple[list[str], int]:
    """Unpack the files; return all names, for dpkg's list, and the newest time."""
    tar = subprocess.Popen(
        [need("dpkg-deb"), "--fsys-tarfile", str(deb.path)], stdout=subprocess.PIPE
    )
    assert tar.stdout is not None
    seen: list[tarfile.TarInfo] = []
    with tar, tarfile.open(fileobj=tar.stdout, mode="r|") as archive:
        archive.extraction_filter = lambda member, _path: member
        members = _wanted(archive, root, seen)
        archive.extractall(root, members=members, numeric_owner=True)
    if tar.returncode:
        raise ImageError(f"{deb.path} is damaged", "remove it and build again")
    names = [f"/{_plain(member) or '.'}" for member in seen]
    return names, max((int(member.mtime) for member in seen), default=0)


def _plain(member: tarfile.TarInfo) -> str:
    return member.name.removeprefix(".").strip("/")


def _wanted(
    archive: tarfile.TarFile, root: Path, seen: list[tarfile.TarInfo]
) -> Iterator[tarfile.TarInfo]:
    for member in archive:
        seen.append(member)
        name = _plain(member)
        if not name or _excluded(name, member):
            continue
        place = root / name
        if member.isdir() and place.is_symlink():
            continue  # /lib and its like are links to below /usr
        if not member.isdir() and (place.is_symlink() or place.exists()):
            place.unlink()
        yield member


def _excluded(name: str, member: tarfile.TarInfo) -> bool:
    if not name.startswith(EXCLUDES) or member.isdir():
        return False
    return Path(name).name != KEPT


def _conffiles(text: str) -> str:
    lines = [line.split()[-1] for line in text.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith("remove-on-upgrade")]
    return "Conffiles:\n" + "".join(f" {line} newconffile\n" for line in kept)


def _stand_in_for_preinst(root: Path) -> None:
    for name in ("passwd", "group"):
        target = root / "etc" / name
        if not target.exists():
            shutil.copy(root / f"usr/share/base-passwd/{name}.master", target)
    for link, target_name in (("awk", "mawk"), ("sh", "dash")):
        path = root / "usr/bin" / link
        if not path.is_symlink() and not path.exists():
            path.symlink_to(target_name)
    os.chmod(root / "tmp", 0o1777)  # noqa: PTH101 - made by base-files


def configure(root: Path, epoch: int, report: Reporter) -> None:
    """Run all maintainers' scripts once, under emulation where this machine is not arm64.

    It also makes the users that `place_files` declares, so call that before.

    Raises:
        ImageError: A script failed; the message ends with dpkg's last words.
    """
    report("configuring all packages under emulation: this takes minutes")
    guard = root / "usr/sbin/policy-rc.d"
    guard.write_text("#!/bin/sh\nexit 101\n", encoding="ascii")
    guard.chmod(0o755)
    with _mounts(root):
        _inside(root, epoch, "ldconfig")
        with shortcuts(root):
            _inside(root, epoch, "dpkg", "--configure", "--pending", "--force-unsafe-io")
        trust_authorities(root)
        _inside(root, epoch, "systemd-sysusers")
        _inside(root, epoch, "openssl", "rehash", "/etc/ssl/certs")
        audit = _inside(root, epoch, "dpkg", "--audit")
    guard.unlink()
    if audit.strip():
        raise ImageError(f"packages are left unconfigured: {audit.strip()[:400]}")


def _inside(root: Path, epoch: int, *command: str) -> str:
    env = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "DEBIAN_FRONTEND": "noninteractive",
        "DEBCONF_NONINTERACTIVE_SEEN": "true",
        "HOME": "/root",
        "INITRD": "No",
        "LC_ALL": "C",
        "PERL_HASH_SEED": "0",
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": str(epoch),
    }
    return call(["chroot", root, *command], env=env)


@contextmanager
def _mounts(root: Path) -> Iterator[None]:
    mounts = (
        ("proc", ["-t", "proc", "proc"]),
        ("sys", ["--rbind", "/sys"]),
        ("dev", ["--rbind", "/dev"]),
    )
    done: list[Path] = []
    try:
        for name, options in mounts:
            call(["mount", *options, root / name])
            done.append(root / name)
        yield
    finally:
        for place in reversed(done):
            call(["umount", "--lazy", place])
