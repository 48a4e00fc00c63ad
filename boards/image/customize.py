"""Put edge-kit into a stock Raspberry Pi OS image by its FAT partition alone.

The stock system stays as its makers built it, camera stack included. At the first start systemd
runs a script from the boot partition, asked for on the kernel's command line (``systemd.run=``, see
systemd-debug-generator(8) and kernel-command-line(7)), which unpacks the payload and starts again.
"""

from __future__ import annotations

import io
import lzma
import os
import re
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

import edge_kit
from boards.image.hook import HOOK, PAYLOAD, SCRIPT, SETUP
from boards.image.partitions import MIB, Partition, partitions
from boards.image.unpack import copy_raw
from boards.image.wheels import Wheel, fetch_wheels, unzip_wheels
from boards.onboard.place import SITE, place_code, place_files
from boards.onboard.settings import FILE, Settings
from boards.system.tool import Reporter, call, require
from edge_kit.bundle import Bundle, sha256_file
from edge_kit.errors import ImageError, UsageError

__all__ = ["Stock", "customize", "look_at", "payload"]

_TOOLS = ("debugfs", "mcopy", "mdir", "sfdisk", "xz")
_FAT_TYPES = ("b", "c", "e")
# Debian's codename: its CPython.
_PYTHONS = {"bookworm": "3.11", "trixie": "3.13"}
_EPOCH = 1_735_689_600  # 2025-01-01: what the payload's files bear
# Other hooks in there: Raspberry Pi Imager's settings use one, in images of Bookworm.
_TAKEN = re.compile(r"(?:^| )(systemd\.(?:run|unit)=\S*)")
# In images of Trixie cloud-init would set the host name again, to what it was when it started.
_EXTRA_FILES = {"etc/cloud/cloud.cfg.d/95-edge-kit.cfg": "preserve_hostname: true\n"}


@dataclass(frozen=True)
class Stock:
    """What a stock image is.

    Attributes:
        codename: Debian's, such as ``bookworm``.
        python: Its CPython.
        boot: Its FAT partition.
        cmdline: The kernel's command line.
    """

    codename: str
    python: str
    boot: Partition
    cmdline: str


def look_at(image: Path) -> Stock:
    """Recognise a raw image, by reading only.

    Raises:
        ImageError: Its layout is not Raspberry Pi OS's, or edge-kit does not know this system.
    """
    found = partitions(image)
    if len(found) < 2 or found[0].kind not in _FAT_TYPES or found[1].kind != "83":
        raise ImageError(f"{image} has not a FAT and a Linux partition, as Raspberry Pi OS has")
    root = f"{image}?offset={found[1].start}"
    release = call(["debugfs", "-R", "cat /usr/lib/os-release", root])
    codename = re.search(r"^VERSION_CODENAME=(\w+)$", release, re.M)
    if codename is None or codename[1] not in _PYTHONS:
        name = codename[1] if codename else "an unknown system"
        raise ImageError(f"{image} holds {name}", f"take an image of {' or '.join(_PYTHONS)}")
    loader = call(["debugfs", "-R", "ls /usr/lib/aarch64-linux-gnu", root])
    if "libc.so.6" not in loader:
        raise ImageError(
            f"{image} holds a 32-bit system",
            "take the 64-bit image: a 32-bit system runs tflite-runtime only, set up with pip",
        )
    with tempfile.TemporaryDirectory() as name:
        _from_fat(image, found[0], "cmdline.txt", Path(name) / "cmdline.txt")
        text = (Path(name) / "cmdline.txt").read_text(encoding="utf-8", errors="replace").strip()
    # The firmware reads the first line and no other.
    return Stock(codename[1], _PYTHONS[codename[1]], found[0], text.partition("\n")[0].strip())


def customize(
    image: Path,
    bundle: Bundle,
    settings: Settings,
    out: Path,
    cache: Path,
    report: Reporter,
    photos: Path | None = None,
) -> str:
    """Write a customized copy; return its SHA-256. Interrupted, it leaves none.

    Args:
        image: The stock image, ``.img`` or ``.img.xz``; it stays as it is.
        bundle: What the device runs.
        settings: Of the device.
        out: The new image, ``.img`` or ``.img.xz``.
        cache: Directory that keeps downloads.
        report: Told what happens.
        photos: Directory to put into it, at ``/var/lib/edge-kit/photos``.

    Raises:
        EdgeKitError: The image is unknown or too full, or something is missing.
    """
    require(_TOOLS)
    if not out.name.endswith((".img", ".img.xz")):
        raise UsageError(f"{out} is not a name for an image", "end it with .img or .img.xz")
    if out.resolve() == image.resolve():
        raise UsageError("the customized image would overwrite the stock one", "name another --out")
    bundle.end_files("aarch64")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".image-", dir=out.parent) as name:
        work = Path(name)
        raw = work / "edge.img"
        report(f"copying {image}")
        copy_raw(image, raw)
        stock = look_at(raw)
        _check_free(image, stock.cmdline)
        report(f"{stock.codename}, Python {stock.python}")
        wheels = fetch_wheels(stock.python, cache / f"wheels-{stock.python}", report)
        files = work / "files"
        files.mkdir()
        report("packing edge-kit")
        (files / PAYLOAD).write_bytes(payload(bundle, settings, wheels, work / "tree", photos))
        (files / FILE).write_text(settings.whole(), encoding="utf-8")
        (files / SCRIPT).write_text(SETUP, encoding="ascii")
        (files / "cmdline.txt").write_text(f"{stock.cmdline} {HOOK}\n", encoding="utf-8")
        _write(raw, stock.boot, files)
        if out.suffix == ".xz":
            report("compressing the image")
            call(["xz", "-2", "--threads=2", "--block-size=16MiB", raw])
            raw = raw.with_suffix(".img.xz")
        digest = sha256_file(raw)
        raw.replace(out)
    return digest


def _check_free(image: Path, cmdline: str) -> None:
    """Refuse an image that has another hook for its first start.

    Two hooks cannot share the line: Imager's script cuts it off from its own word on, and Bookworm
    rewrites every path in it.
    """
    if SCRIPT in cmdline:
        raise UsageError(f"{image} was customized before", "take the stock image")
    if taken := _TAKEN.search(cmdline):
        raise UsageError(
            f"{image} has a first start of its own: its cmdline.txt says {taken[1]}",
            "Raspberry Pi Imager's settings do that. Take the image as downloaded, and put host "
            "name, Wi-Fi and SSH keys into --config",
        )


def payload(
    bundle: Bundle,
    settings: Settings,
    wheels: list[Wheel],
    tree: Path,
    photos: Path | None = None,
) -> bytes:
    """Return the archive that the first start unpacks over the root; same input, same bytes.

    What brings the board onto its network comes first: a damaged archive gives that much.
    """
    place_files(tree, settings)
    for name, text in _EXTRA_FILES.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, encoding="ascii")
    unzip_wheels(wheels, tree / SITE)
    place_code(tree, Path(edge_kit.__file__).parent)
    bundles = tree / "var/lib/edge-kit/bundles"
    model = bundle.manifest.model_hash[:12]
    shutil.copytree(bundle.root, bundles / model)
    (bundles / "current").symlink_to(model)
    if photos is not None:
        shutil.copytree(photos, tree / "var/lib/edge-kit/photos")
    packed = io.BytesIO()
    with (
        lzma.open(packed, "wb", preset=2) as xz,
        tarfile.open(fileobj=xz, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in sorted(tree.rglob("*"), key=lambda path: (_is_heavy(path, tree), path)):
            member = archive.gettarinfo(path, str(path.relative_to(tree)))
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mtime = _EPOCH
            runs = member.isdir() or path.name == "backoff"
            member.mode = 0o777 if member.issym() else 0o755 if runs else 0o644
            if member.isreg():
                with path.open("rb") as file:
                    archive.addfile(member, file)
            else:
                archive.addfile(member)
    return packed.getvalue()


def _is_heavy(path: Path, tree: Path) -> bool:
    return path.is_relative_to(tree / SITE) or path.is_relative_to(tree / "var")


def _write(raw: Path, boot: Partition, files: Path) -> None:
    """Copy all files to the FAT partition.

    Raises:
        ImageError: They do not fit.
    """
    env = os.environ | {"SOURCE_DATE_EPOCH": str(_EPOCH), "TZ": "UTC"}
    needed = sum(f.stat().st_size for f in files.iterdir())
    for file in sorted(files.iterdir()):
        os.utime(file, (_EPOCH, _EPOCH))
        try:
            place = f"{raw}@@{boot.start}"
            call(["mcopy", "-o", "-m", "-i", place, file, f"::/{file.name}"], env=env)
        except ImageError as error:
            raise ImageError(
                f"the boot partition ({boot.size // MIB} MiB) does not take "
                f"{needed // MIB + 1} MiB: {error}",
                "take an image whose boot partition has more room",
            ) from None


def _from_fat(image: Path, boot: Partition, name: str, out: Path) -> None:
    call(["mcopy", "-n", "-o", "-i", f"{image}@@{boot.start}", f"::/{name}", out])
