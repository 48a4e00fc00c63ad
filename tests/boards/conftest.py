from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.boards.stock import EPOCH


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a folder").mkdir(parents=True)
    (root / "a folder/file").write_text("text")
    (root / "a folder/run").write_text("#!/bin/sh\n")
    (root / "a folder/run").chmod(0o4755)
    (root / "link").symlink_to("a folder/file")
    for path in (root / "a folder/file", root / "a folder/run", root / "a folder"):
        os.utime(path, (EPOCH - 5, EPOCH - 5))
    os.utime(root / "link", (EPOCH, EPOCH), follow_symlinks=False)
    os.utime(root, (EPOCH, EPOCH))
    return root
