"""Fetch Debian packages for arm64 with apt, beside whatever this machine itself has installed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from boards.system.tool import Reporter, call
from edge_kit.errors import ImageError

__all__ = ["BASE", "RASPBERRY", "SUITE", "Deb", "Mirrors", "fetch", "host_mirrors"]

SUITE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

BASE = (
    "?essential",
    "apt", "busybox-static", "ca-certificates", "dbus", "debian-archive-keyring", "dosfstools",
    "e2fsprogs", "fdisk", "iproute2", "kmod", "linux-image-arm64", "network-manager",
    "openssh-server", "openssl", "python3", "systemd", "systemd-sysv", "systemd-timesyncd",
    "tzdata", "udev", "usr-is-merged", "wireless-regdb", "wpasupplicant",
)  # fmt: skip

_RETRIES = "3"

# Boot firmware and the radio's; both are in the component non-free-firmware.
RASPBERRY = ("raspi-firmware", "firmware-brcm80211")


@dataclass(frozen=True)
class Deb:
    """One package file.

    Attributes:
        name: Of the package.
        version: Debian's.
        arch: ``arm64`` or ``all``.
        path: The file.
    """

    name: str
    version: str
    arch: str
    path: Path


@dataclass(frozen=True)
class Mirrors:
    """Where packages come from.

    Attributes:
        main: URL of Debian's archive.
        security: URL of its security updates; empty for none.
        suite: Debian's release.
    """

    main: str
    security: str = ""
    suite: str = SUITE

    def lines(self) -> str:
        """Return ``sources.list``."""
        parts = "main non-free-firmware"
        signed = f"[arch=arm64 signed-by={KEYRING}]"
        found = [f"deb {signed} {self.main} {self.suite} {parts}"]
        if self.security:
            found.append(f"deb {signed} {self.security} {self.suite}-security {parts}")
        return "\n".join(found) + "\n"


def host_mirrors(etc: Path = Path("/etc/apt")) -> Mirrors:
    """Return the archive that this Debian machine uses itself.

    Raises:
        ImageError: It uses none; the message says how to name one.
    """
    urls: list[str] = []
    for file in (etc / "sources.list", *sorted((etc / "sources.list.d").glob("*"))):
        if file.suffix in (".list", ".sources") and file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            active = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
            urls += re.findall(r"\bhttps?://[^\s\]]+?/debian(?:-security)?/?(?=\s|$)", active)
    main = [u for u in urls if u.rstrip("/").endswith("/debian")]
    security = [u for u in urls if u.rstrip("/").endswith("/debian-security")]
    if not main:
        raise ImageError("apt on this machine has no Debian archive", "name one with --mirror URL")
    return Mirrors(main[0], security[0] if security else "")


def fetch(names: tuple[str, ...], mirrors: Mirrors, cache: Path, report: Reporter) -> list[Deb]:
    """Return the packages and all that they depend on, downloaded and checked by apt.

    Args:
        names: Packages or apt patterns.
        mirrors: Where from.
        cache: Directory that keeps apt's lists and the files for the next build.
        report: Told what happens.

    Raises:
        ImageError: No network, no such package, or a signature that does not fit.
    """
    if not KEYRING.exists():
        raise ImageError(
            f"{KEYRING} is missing", "on Debian: apt-get install debian-archive-keyring"
        )
    options = _apt_options(cache, mirrors)
    report("reading Debian's package lists")
    try:
        # By default apt only warns of a server that does not answer, and then knows no package.
        call(["apt-get", *options, "-oAPT::Update::Error-Mode=any", "update"])
    except ImageError as error:
        raise ImageError(
            f"Debian's package lists cannot be fetched: {error}",
            "check whether this machine reaches the archive; --mirror URL names another",
        ) from None
    install = ["apt-get", *options, "--yes", "--no-install-recommends", "install"]
    report("downloading Debian packages")
    call([*install, "--download-only", *names])
    # The plan names versions; the cache may hold older ones of earlier builds.
    plan = call([*install, "--simulate", *names])
    wanted = set(re.findall(r"^Inst (\S+) \((\S+) ", plan, re.M))
    files = map(_describe, sorted((cache / "archives").glob("*.deb")))
    debs = [d for d in files if (d.name, d.version) in wanted]
    missing = {name for name, _version in wanted} - {d.name for d in debs}
    if missing or not debs:
        raise ImageError(f"apt did not fetch {', '.join(sorted(missing)) or 'anything'}")
    return debs


def _apt_options(cache: Path, mirrors: Mirrors) -> list[str]:
    """Make apt work for arm64 in directories of its own, with nothing installed."""
    for name in ("lists/partial", "archives/partial", "etc"):
        (cache / name).mkdir(parents=True, exist_ok=True)
    (cache / "etc/sources.list").write_text(mirrors.lines(), encoding="utf-8")
    (cache / "status").write_text("", encoding="utf-8")
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "APT::Get::List-Cleanup": "true",
        "Acquire::Languages": "none",
        "Acquire::Retries": _RETRIES,
        "Dir::Cache": str(cache),
        "Dir::Cache::Archives": str(cache / "archives"),
        "Dir::Etc::Parts": "/dev/null",
        "Dir::Etc::SourceList": str(cache / "etc/sources.list"),
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State": str(cache),
        "Dir::State::Lists": str(cache / "lists"),
        "Dir::State::Status": str(cache / "status"),
        "DPkg::Use-Pty": "false",
        "Debug::NoLocking": "true",
    }
    return ["-q", *(f"-o{key}={value}" for key, value in settings.items())]


def _describe(path: Path) -> Deb:
    # name_version_arch.deb; apt writes the colon of an epoch as %3a
    name, version, arch = path.stem.split("_")
    return Deb(name, version.replace("%3a", ":"), arch, path)
