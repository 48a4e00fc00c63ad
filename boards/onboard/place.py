"""Put the payload into a root file system: files, users, links that enable units."""

from __future__ import annotations

import shutil
from pathlib import Path

from boards.onboard.settings import Settings

__all__ = ["FILES", "SITE", "place_code", "place_files"]

FILES = Path(__file__).parent / "files"
SITE = "usr/lib/edge-kit/site-packages"
_FIRST = "usr/lib/edge-kit/firstboot"

# File here, place there, mode.
_PLACES = (
    ("edge-kit.service", "etc/systemd/system/edge-kit.service", 0o644),
    ("edge-kit-firstboot.service", "etc/systemd/system/edge-kit-firstboot.service", 0o644),
    ("edge-kit-enroll.service", "etc/systemd/system/edge-kit-enroll.service", 0o644),
    ("edge-kit-enroll.timer", "etc/systemd/system/edge-kit-enroll.timer", 0o644),
    ("backoff", "usr/lib/edge-kit/backoff", 0o755),
    ("sysusers.conf", "usr/lib/sysusers.d/edge-kit.conf", 0o644),
    ("tmpfiles.conf", "usr/lib/tmpfiles.d/edge-kit.conf", 0o644),
    ("udev.rules", "usr/lib/udev/rules.d/60-edge-kit.rules", 0o644),
    ("journald.conf", "etc/systemd/journald.conf.d/edge-kit.conf", 0o644),
    ("sshd.conf", "etc/ssh/sshd_config.d/edge-kit.conf", 0o644),
)
# Unit: the target that starts it.
_UNITS = {
    "edge-kit.service": "multi-user.target",
    "edge-kit-firstboot.service": "multi-user.target",
    "edge-kit-enroll.service": "multi-user.target",
    "edge-kit-enroll.timer": "timers.target",
}
# The watchdog waits for so many frames, and at least so many seconds.
_MISSED_FRAMES = 5
_LEAST_S = 60


def place_files(root: Path, settings: Settings) -> None:
    """Place units, rules and users, and enable the units."""
    for source, target, mode in _PLACES:
        path = root / target
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FILES / source, path)
        path.chmod(mode)
    for unit, target in _UNITS.items():
        link = root / f"etc/systemd/system/{target}.wants" / unit
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(f"/etc/systemd/system/{unit}")
    if drop_in := watchdog(settings):
        path = root / "etc/systemd/system/edge-kit.service.d/watchdog.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(drop_in, encoding="ascii")
        path.chmod(0o644)


def watchdog(settings: Settings) -> str:
    """Return a drop-in for cameras so slow that the unit's watchdog would bite; mostly empty."""
    fps = settings.run.get("fps")
    if not isinstance(fps, int | float) or not 0 < fps < _MISSED_FRAMES / _LEAST_S:
        return ""
    seconds = int(_MISSED_FRAMES / fps) + 1
    return f"[Service]\nWatchdogSec={seconds}\nTimeoutStartSec={seconds + 600}\n"


def place_code(root: Path, package: Path) -> None:
    """Place edge_kit itself, and the first boot's modules beside it.

    Args:
        root: The root file system.
        package: The directory of the package ``edge_kit``.
    """
    ignore = shutil.ignore_patterns("__pycache__", "assets")
    shutil.copytree(package, root / SITE / "edge_kit", ignore=ignore, dirs_exist_ok=True)
    first = root / _FIRST / "boards"
    shutil.copytree(FILES.parent, first / "onboard", ignore=ignore, dirs_exist_ok=True)
    shutil.copyfile(FILES.parents[1] / "__init__.py", first / "__init__.py")
    for path in (root / "usr/lib/edge-kit").rglob("*"):
        if path.suffix == ".py":
            path.chmod(0o644)
        elif path.is_dir():
            path.chmod(0o755)
