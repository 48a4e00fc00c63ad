"""Build an image: packages and wheels → root file system → partitions → one compressed file."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import edge_kit
from boards.data.board import Board
from boards.flash.bmap import make_map
from boards.image.packages import BASE, RASPBERRY, Deb, Mirrors, fetch
from boards.image.partitions import assemble
from boards.image.stage import FILE_SYSTEMS, PYTHON, Stage
from boards.image.wheels import Wheel, fetch_wheels
from boards.onboard.settings import Settings, SettingsError, dump
from boards.system.namespace import run_as_root
from boards.system.tool import Reporter, call, require
from edge_kit.bundle import Bundle, sha256_file
from edge_kit.device.config import resolve
from edge_kit.errors import ConfigError, ImageError, UsageError
from edge_kit.records import to_json

__all__ = ["Order", "build", "read_settings"]

_TOOLS = (
    "apt-get", "debugfs", "depmod", "dpkg-deb", "mcopy", "mke2fs", "mkfs.vfat", "modprobe",
    "sfdisk", "unshare", "xz",
)  # fmt: skip
_KINDS = ["c", "83", "83"]
ARCH = "aarch64"


@dataclass(frozen=True)
class Order:
    """What to build.

    Attributes:
        board: Which board.
        bundle: The verified bundle.
        settings: Of the device.
        photos: Directory to put into the image, or None.
        out: The image, ``….img.xz``.
        mirrors: Where Debian's packages come from.
        cache: Directory that keeps downloads.
        epoch: Unix time of the image; None for that of the newest file in a package.
    """

    board: Board
    bundle: Bundle
    settings: Settings
    photos: Path | None
    out: Path
    mirrors: Mirrors
    cache: Path
    epoch: int | None = None


def read_settings(file: Path) -> Settings:
    """Read a device's settings.

    Raises:
        ConfigError: The file is missing or has an invalid value.
    """
    try:
        settings = Settings.parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}", "check the path; docs/images.md shows one"
        ) from None
    except (UnicodeDecodeError, SettingsError) as error:
        raise ConfigError(f"{file}: {error}", "see docs/images.md") from None
    _check_run(file, settings)
    return settings


def _check_run(file: Path, settings: Settings) -> None:
    """Refuse keys of ``[run]`` that the device would refuse at each start."""
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        # What the first boot sets is not looked at.
        values = {**settings.run, "spool": "spool.db"}
        run.write_text(dump({"": {"device_id": "edge", **values}}), encoding="utf-8")
        try:
            resolve({}, {}, run)
        except ConfigError as error:
            said = error.what.replace(str(run), "[run]")
            raise ConfigError(f"{file}: {said}", error.hint) from None


def build(order: Order, report: Reporter) -> dict[str, str]:
    """Build; return paths and checksum of what was written.

    Interrupted or failed, it leaves nothing beside the downloads.

    Raises:
        EdgeKitError: Something is missing or failed; the message says what.
    """
    _check(order)
    debs = fetch(_names(order.board), order.mirrors, order.cache, report)
    wheels = fetch_wheels(PYTHON, order.cache / "wheels", report)
    order.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".image-", dir=order.out.parent) as name:
        work = Path(name)
        try:
            _run_stage(_stage(order, work / "stage", debs, wheels))
            epoch = int((work / "stage/epoch").read_text(encoding="ascii"))
            report("assembling the image")
            raw = work / "edge.img"
            assemble([work / "stage" / n for n in FILE_SYSTEMS], _KINDS, raw)
            files = _pack(order, raw, debs, wheels, epoch, report)
            sums = {suffix: sha256_file(file) for suffix, file in files.items()}
            for suffix, file in files.items():
                file.replace(f"{order.out}{suffix}")
        finally:
            _empty(work / "stage")
    return {"image": str(order.out), "sha256": sums[""]}


def _check(order: Order) -> None:
    if order.out.suffix != ".xz":
        raise UsageError(f"{order.out} is not a name for a compressed image", "end it with .img.xz")
    if not any(s.route == "build" and s.python == PYTHON for s in order.board.systems):
        raise UsageError(
            f"no image is built for {order.board.title}",
            "put edge-kit into a stock image: edge-kit image customize",
        )
    order.bundle.end_files(ARCH)
    native = os.uname().machine in ("aarch64", "arm64")
    require(_TOOLS if native else (*_TOOLS, "qemu-aarch64-static"))


def _names(board: Board) -> tuple[str, ...]:
    return BASE + (RASPBERRY if board.name != "qemu-virt" else ())


def _stage(order: Order, work: Path, debs: list[Deb], wheels: list[Wheel]) -> Stage:
    work.mkdir()
    return Stage(
        work=work,
        debs=debs,
        wheels=wheels,
        package=Path(edge_kit.__file__).parent,
        settings=order.settings.whole(),
        bundle=order.bundle.root,
        model=order.bundle.manifest.model_hash[:12],
        photos=order.photos,
        firmware=order.board.name != "qemu-virt",
        epoch=order.epoch,
    )


def _run_stage(stage: Stage) -> None:
    plan = stage.work / "stage.json"
    plan.write_text(json.dumps(to_json(stage)), encoding="utf-8")
    status = run_as_root([sys.executable, "-m", "boards.image.stage", str(plan)])
    failed = stage.work / "failed"
    if failed.exists():
        raise ImageError(failed.read_text(encoding="utf-8"))
    if status:
        raise ImageError(f"the build ended with status {status}")


def _empty(folder: Path) -> None:
    """Remove what belongs to other users of the namespace, as its root."""
    if folder.exists() and os.geteuid() != 0:
        run_as_root(["/bin/rm", "-rf", str(folder)])
    shutil.rmtree(folder, ignore_errors=True)


def _pack(
    order: Order, raw: Path, debs: list[Deb], wheels: list[Wheel], epoch: int, report: Reporter
) -> dict[str, Path]:
    """Return the finished files by what follows the image's name."""
    report("mapping and compressing the image")
    block_map = raw.with_suffix(".bmap")
    block_map.write_bytes(make_map(raw).encode())
    parts = raw.with_suffix(".json")
    parts.write_text(json.dumps(_bill(order, debs, wheels, epoch), indent=1) + "\n", "utf-8")
    # Blocks make the result the same for any number of threads.
    call(["xz", "-2", "--threads=2", "--block-size=16MiB", raw])
    packed = raw.with_suffix(".img.xz")
    sums = raw.with_suffix(".sha256")
    sums.write_text(f"{sha256_file(packed)}  {order.out.name}\n", encoding="utf-8")
    return {"": packed, ".bmap": block_map, ".sbom.json": parts, ".sha256": sums}


def _bill(order: Order, debs: list[Deb], wheels: list[Wheel], epoch: int) -> dict[str, object]:
    """Return the bill of materials, in CycloneDX 1.5."""
    components: list[dict[str, object]] = []
    for deb in debs:
        components.append({
            "type": "library", "name": deb.name, "version": deb.version,
            "purl": f"pkg:deb/debian/{deb.name}@{deb.version}?arch={deb.arch}",
            "hashes": [{"alg": "SHA-256", "content": sha256_file(deb.path)}],
        })  # fmt: skip
    for wheel in wheels:
        components.append({
            "type": "library", "name": wheel.name, "version": wheel.version,
            "purl": f"pkg:pypi/{wheel.name}@{wheel.version}",
            "hashes": [{"alg": "SHA-256", "content": wheel.sha256}],
        })  # fmt: skip
    manifest = order.bundle.manifest
    components.append({
        "type": "machine-learning-model", "name": manifest.name, "version": manifest.model_hash,
    })  # fmt: skip
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {
            "type": "operating-system", "name": f"edge-kit for {order.board.name}",
            "version": str(epoch),
        }},
        "components": components,
    }  # fmt: skip
