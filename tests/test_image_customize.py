from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from boards.image import customize as module
from boards.image.customize import FILE, PAYLOAD, SCRIPT, customize, look_at
from boards.image.wheels import Wheel
from boards.payload.settings import Settings
from edge_kit.errors import ImageError, UsageError
from tests.stock import CMDLINE, make_stock, run

_TOOLS = ("mkfs.vfat", "mcopy", "mke2fs", "debugfs", "sfdisk")
pytestmark = pytest.mark.skipif(
    any(shutil.which(t, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None for t in _TOOLS),
    reason=f"needs {', '.join(_TOOLS)}",
)
SETTINGS = Settings.parse("[secrets]\nbroker_password = 'hunter2'\n[run]\ncamera = 'auto'\n")


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """One wheel that is there already; what asked for it."""
    path = tmp_path / "numpy.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("numpy/__init__.py", "version = 'the wheel'\n")
    asked: list[str] = []

    def fetch(python: str, _cache: Path, _report: object) -> list[Wheel]:
        asked.append(python)
        return [Wheel("numpy", "1", "0" * 64, path)]

    monkeypatch.setattr(module, "fetch_wheels", fetch)
    monkeypatch.setattr("edge_kit.bundle.Bundle.end_files", lambda *_a: ())
    return asked


def from_fat(image: Path, name: str, out: Path) -> bytes:
    run("mcopy", "-n", "-o", "-i", f"{image}@@{4 << 20}", f"::/{name}", out / "read")
    return (out / "read").read_bytes()


@pytest.mark.parametrize(("codename", "python"), [("bookworm", "3.11"), ("trixie", "3.13")])
def test_the_payload_goes_onto_the_boot_partition_of_either_system(
    tiny_bundle, tmp_path, wheels, codename, python
):
    stock = make_stock(tmp_path, codename)
    before = stock.read_bytes()
    out = tmp_path / "new/edge.img"
    customize(stock, tiny_bundle, SETTINGS, out, tmp_path, lambda _text: None)
    assert stock.read_bytes() == before and wheels == [python]
    line = from_fat(out, "cmdline.txt", tmp_path).decode()
    assert line.startswith(f"{CMDLINE} systemd.run=/boot/firmware/{SCRIPT} ")
    assert line.count("\n") == 1
    assert Settings.parse(from_fat(out, FILE, tmp_path).decode()) == SETTINGS
    assert from_fat(out, "config.txt", tmp_path) == b"camera_auto_detect=1\n"
    # The Linux partition was not touched.
    assert out.read_bytes()[52 << 20 :] == before[52 << 20 :]
    run("fsck.vfat", "-n", extracted(out, tmp_path))
    assert [p.name for p in out.parent.iterdir()] == ["edge.img"]


def extracted(image: Path, folder: Path) -> Path:
    part = folder / "part.fat"
    part.write_bytes(image.read_bytes()[4 << 20 : 52 << 20])
    return part


def test_the_first_start_installs_everything_and_removes_itself(tiny_bundle, tmp_path, wheels):
    """The script runs for real, on a root directory of its own, with systemd's tools recorded."""
    out = tmp_path / "edge.img"
    customize(make_stock(tmp_path), tiny_bundle, SETTINGS, out, tmp_path, lambda _text: None)
    boot, root, bin_ = tmp_path / "boot", tmp_path / "onboard", tmp_path / "bin"
    for folder in (boot, root, bin_):
        folder.mkdir()
    for name in (PAYLOAD, SCRIPT, "cmdline.txt"):
        (boot / name).write_bytes(from_fat(out, name, tmp_path))
    calls = tmp_path / "calls"
    for tool in ("systemd-sysusers", "systemd-tmpfiles", "systemctl", "chown", "sync"):
        (bin_ / tool).write_text(f'#!/bin/sh\necho {tool} "$@" >> {calls}\n')
        (bin_ / tool).chmod(0o755)
    script = (boot / SCRIPT).read_text()
    script = script.replace("boot=/boot/firmware", f"boot={boot}")
    script = script.replace("--directory / ", f"--directory {root} --no-same-owner ")
    env = {"PATH": f"{bin_}:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", script], env=env, check=True, capture_output=True)
    assert (root / "usr/lib/edge-kit/site-packages/numpy/__init__.py").exists()
    assert (root / "usr/lib/edge-kit/site-packages/edge_kit/cli.py").exists()
    assert (root / "usr/lib/edge-kit/backoff").stat().st_mode & 0o777 == 0o755
    assert (root / "var/lib/edge-kit/bundles/current/manifest.json").exists()
    assert "systemctl enable edge-kit.service edge-kit-firstboot.service" in calls.read_text()
    assert (boot / "cmdline.txt").read_text() == CMDLINE + "\n"
    assert sorted(p.name for p in boot.iterdir()) == ["cmdline.txt"]


def test_the_payload_is_roots_and_the_same_each_time(tiny_bundle, tmp_path, wheels):
    made = module.fetch_wheels("3.11", tmp_path, print)
    first = module.payload(tiny_bundle, SETTINGS, made, tmp_path / "a")
    assert module.payload(tiny_bundle, SETTINGS, made, tmp_path / "b") == first
    with tarfile.open(fileobj=io.BytesIO(first), mode="r:xz") as archive:
        for member in archive:
            assert (member.uid, member.gid) == (0, 0) and not member.name.startswith("/")
            assert not member.mode & 0o022 or member.issym()


def test_what_is_no_known_system_is_refused(tiny_bundle, tmp_path, wheels):
    (tmp_path / "a").mkdir()
    with pytest.raises(ImageError, match="holds buster"):
        look_at(make_stock(tmp_path / "a", "buster"))
    (tmp_path / "b").mkdir()
    with pytest.raises(ImageError, match="32-bit"):
        look_at(make_stock(tmp_path / "b", arch="arm"))
    empty = tmp_path / "empty.img"
    empty.write_bytes(bytes(1 << 20))
    with pytest.raises(ImageError, match=r"sfdisk failed|no partitions"):
        look_at(empty)


def test_a_customized_image_and_one_onto_itself_are_refused(tiny_bundle, tmp_path, wheels):
    stock, out = make_stock(tmp_path), tmp_path / "edge.img"
    with pytest.raises(UsageError, match="overwrite"):
        customize(stock, tiny_bundle, SETTINGS, stock, tmp_path, lambda _text: None)
    customize(stock, tiny_bundle, SETTINGS, out, tmp_path, lambda _text: None)
    with pytest.raises(UsageError, match="before"):
        customize(out, tiny_bundle, SETTINGS, tmp_path / "2.img", tmp_path, lambda _text: None)
    assert not (tmp_path / "2.img").exists()


def test_too_little_room_is_told_and_leaves_no_image(tiny_bundle, tmp_path, wheels, monkeypatch):
    monkeypatch.setattr(module, "payload", lambda *_a: os.urandom(50 << 20))
    out = tmp_path / "new/edge.img"
    with pytest.raises(ImageError, match=r"48 MiB\) does not take 51 MiB"):
        customize(make_stock(tmp_path), tiny_bundle, SETTINGS, out, tmp_path, lambda _text: None)
    assert list(out.parent.iterdir()) == []
