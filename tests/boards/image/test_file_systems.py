"""File systems and partition tables, made as files."""

from __future__ import annotations

import os
import shutil
import time

import pytest

from boards.image.partitions import assemble, make_ext4, make_fat, partitions
from edge_kit.errors import ImageError
from tests.support.boards.stock import EPOCH, run, tools


@tools
def test_same_files_make_the_same_file_systems_at_any_time(tree, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(tree, again, symlinks=True)
    os.utime(again / "link", (EPOCH, EPOCH), follow_symlinks=False)
    images = []
    for n, source in enumerate((tree, again)):
        out = tmp_path / f"{n}.ext4"
        make_ext4(source, out, "EDGEDATA", 3, EPOCH, 8)
        fat = tmp_path / f"{n}.fat"
        make_fat(source / "a folder", fat, EPOCH)
        images.append((out.read_bytes(), fat.read_bytes()))
        wait_for_the_next_second()
    assert images[0][0] == images[1][0]
    assert images[0][1] == images[1][1]


def wait_for_the_next_second():
    now = int(time.time())
    while int(time.time()) == now:
        time.sleep(0.05)


@tools
def test_file_system_keeps_modes_and_links(tree, tmp_path):
    out = tmp_path / "out.ext4"
    make_ext4(tree, out, "EDGEDATA", 3, EPOCH, 8)
    told = run("debugfs", "-R", 'stat "/a folder/run"', out)
    assert "Mode:  04755" in told and f"0x{EPOCH:08x}" in told
    assert "a folder/file" in run("debugfs", "-R", "stat /link", out)
    run("e2fsck", "-fn", out)


@tools
def test_assembled_partitions_are_read_back(tree, tmp_path):
    parts = []
    for n, byte in enumerate((b"1", b"2")):
        parts.append(tmp_path / f"part{n}")
        parts[-1].write_bytes(byte * (1 << 20) + bytes(1 << 20))
    image = tmp_path / "whole.img"
    made = assemble(parts, ["c", "83"], image)
    assert partitions(image) == made
    assert [(p.start, p.size, p.kind) for p in made] == [
        (4 << 20, 2 << 20, "c"),
        (6 << 20, 2 << 20, "83"),
    ]
    data = image.read_bytes()
    assert data[4 << 20 : 8 << 20] == b"".join(p.read_bytes() for p in parts)
    # Zeros of the parts are no data of the image, so that its block map leaves them out.
    assert image.stat().st_blocks * 512 < len(data)
    with pytest.raises(ImageError, match=r"sfdisk failed|no partitions"):
        empty = tmp_path / "empty.img"
        empty.write_bytes(bytes(1 << 20))
        partitions(empty)
