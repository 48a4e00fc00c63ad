"""The initial RAM disk."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import subprocess

import pytest

from boards.image.initrd import make_initrd, pack_cpio
from edge_kit.errors import ImageError

RELEASE = "6.1.0-40-arm64"


def programs_are_missing() -> bool:
    return any(
        shutil.which(name, path="/usr/sbin:/sbin") is None for name in ("depmod", "modprobe")
    )


@pytest.mark.skipif(programs_are_missing(), reason="needs kmod")
@pytest.mark.parametrize("place", ["root", "var/lib/my images/lib/root"])
def test_modules_are_found_in_a_folder_with_spaces(place, tmp_path):
    """The build works beside its output: that folder's name is the user's."""
    root = tmp_path / place
    kernel = root / "lib/modules" / RELEASE / "kernel"
    kernel.mkdir(parents=True)
    for name in ("virtio_blk.ko", "virtio_mmio.ko"):
        (kernel / name).write_bytes(b"")
    (kernel.parent / "modules.order").write_text("kernel/virtio_blk.ko\nkernel/virtio_mmio.ko\n")
    (root / "etc/modprobe.d").mkdir(parents=True)
    (root / "etc/modprobe.d/some.conf").write_text("options virtio_blk queue_depth=4\n")
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/busybox").write_bytes(b"busybox")
    make_initrd(root, RELEASE, tmp_path / "initrd.img")
    packed = gzip.decompress((tmp_path / "initrd.img").read_bytes()).decode("latin-1")
    modules = f"lib/modules/{RELEASE}/kernel"
    assert f"{modules}/virtio_blk.ko\0" in packed
    # What the start script loads, in order.
    assert f"/{modules}/virtio_mmio.ko\n/{modules}/virtio_blk.ko\n" in packed
    assert str(tmp_path) not in packed and "my images" not in packed


def test_root_without_busybox_is_an_error(tmp_path):
    with pytest.raises(ImageError, match="busybox is missing"):
        make_initrd(tmp_path, RELEASE, tmp_path / "initrd.img")


def test_ram_disk_is_a_cpio_archive(tree, tmp_path):
    packed = pack_cpio(tree)
    assert pack_cpio(tree) == packed and packed.startswith(b"070701")
    cpio = shutil.which("cpio")
    command = [cpio] if cpio else [shutil.which("busybox") or pytest.skip("needs cpio"), "cpio"]
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run([*command, "-i", "-d"], input=packed, cwd=out, check=True, capture_output=True)
    assert (out / "a folder/file").read_text() == "text"
    assert os.readlink(out / "link") == "a folder/file"  # noqa: PTH115
    assert (out / "a folder/run").stat().st_mode & stat.S_IXUSR


def test_ram_disk_has_no_timestamp(tree):
    packed = gzip.compress(pack_cpio(tree), 6, mtime=0)
    assert packed[4:8] == bytes(4)
