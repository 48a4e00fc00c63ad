"""Python packages for the board: arm64 wheels, fetched by their hashes and unzipped here."""

from __future__ import annotations

import compileall
import py_compile
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from boards.system.tool import Reporter, call
from edge_kit.errors import ImageError

__all__ = ["Wheel", "compile_all", "fetch_wheels", "unzip_wheels"]

# glibc of Debian 12 is 2.36; pip takes exact tags only, so all that wheels use are named.
_MINORS = (17, 24, 26, 27, 28, 31, 34)
_PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{n}_aarch64" for n in _MINORS))
_PIN = re.compile(r"^([a-z0-9-]+)==(\S+) --hash=sha256:([0-9a-f]{64})$", re.M)


@dataclass(frozen=True)
class Wheel:
    """One Python distribution.

    Attributes:
        name: Of the distribution.
        version: Its version.
        sha256: Of the file.
        path: The file.
    """

    name: str
    version: str
    sha256: str
    path: Path


def fetch_wheels(python: str, cache: Path, report: Reporter) -> list[Wheel]:
    """Fetch what is pinned for a Python, from the cache where it is; pip checks the hashes.

    Args:
        python: ``3.11``.
        cache: Directory that keeps the files.
        report: Told what happens.

    Raises:
        ImageError: There are no pins for this Python, no network, or a hash differs.
    """
    pins = Path(__file__).parent / f"wheels-{python}-aarch64.txt"
    if not pins.exists():
        raise ImageError(f"no wheels are pinned for Python {python}")
    cache.mkdir(parents=True, exist_ok=True)
    report("downloading Python wheels for arm64")
    command: list[str | Path] = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", python.replace(".", ""), "--dest", cache, "-r", pins]
    for platform in _PLATFORMS:
        command += ["--platform", platform]
    call(command)
    return [_find(cache, *pin) for pin in _PIN.findall(pins.read_text(encoding="utf-8"))]


def _find(cache: Path, name: str, version: str, sha256: str) -> Wheel:
    stem = name.replace("-", "_")
    for path in sorted(cache.glob("*.whl")):
        if path.name.lower().startswith(f"{stem}-{version}-"):
            return Wheel(name, version, sha256, path)
    raise ImageError(f"pip did not fetch {name} {version}")


def unzip_wheels(wheels: list[Wheel], site: Path) -> None:
    """Unzip all wheels into one directory, which everyone may read."""
    site.mkdir(parents=True, exist_ok=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel.path) as archive:
            archive.extractall(site)
    for path in site.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def compile_all(folder: Path, root: Path, python: str) -> None:
    """Compile modules when this machine's Python is the board's.

    The service cannot write there, and a small board would compile for seconds at each start.
    Caches that name the hash of their source are the same in every build.
    """
    if python == f"{sys.version_info.major}.{sys.version_info.minor}":
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(folder, quiet=2, stripdir=str(root), invalidation_mode=mode)
