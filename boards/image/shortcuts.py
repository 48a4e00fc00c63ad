"""What packages' scripts would do under emulation for minutes, and this machine does in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boards.system.tool import call

__all__ = ["shortcuts", "trust_authorities"]

# Hooks that build an initial RAM disk and copy it to the boot partition: the image has its own.
# And the program that links 140 certificates by a few processes each.
_HOOKS = ("etc/kernel/postinst.d", "etc/initramfs/post-update.d")
_SLOW = ("usr/sbin/update-ca-certificates",)
_HOST_KEYS = ("rsa", "ecdsa", "ed25519")


@contextmanager
def shortcuts(root: Path) -> Iterator[None]:
    """Replace slow scripts by nothing, without touching files that dpkg watches.

    The mounts are those of the build's namespace.
    """
    covered = [f for name in _HOOKS for f in sorted((root / name).glob("*")) if f.is_file()]
    covered += [root / name for name in _SLOW if (root / name).exists()]
    # sshd's script makes the keys that are not there; a board makes its own at the first boot, and
    # `clean` removes these.
    for kind in _HOST_KEYS:
        key = root / f"etc/ssh/ssh_host_{kind}_key"
        key.parent.mkdir(parents=True, exist_ok=True)
        key.touch()
    for file in covered:
        call(["mount", "--bind", root / "usr/bin/true", file])
    try:
        yield
    finally:
        for file in covered:
            call(["umount", file])


def trust_authorities(root: Path) -> None:
    """Link and join the certificates of ca-certificates.conf(5), as its program does.

    ``openssl rehash /etc/ssl/certs`` is left to the caller.
    """
    config = root / "etc/ca-certificates.conf"
    certs = root / "etc/ssl/certs"
    if not config.exists():
        return
    certs.mkdir(parents=True, exist_ok=True)
    texts = []
    for line in config.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith(("#", "!")):
            continue
        source = Path("usr/share/ca-certificates") / line
        text = (root / source).read_text(encoding="ascii")
        texts.append(text if text.endswith("\n") else text + "\n")
        link = certs / f"{_plain(source.stem)}.pem"
        link.unlink(missing_ok=True)
        link.symlink_to(f"/{source}")
    (certs / "ca-certificates.crt").write_text("".join(texts), encoding="ascii")


def _plain(name: str) -> str:
    return name.translate(str.maketrans(" ,()", "__=="))
