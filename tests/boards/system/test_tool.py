"""Other programs: found, run and quoted."""

from __future__ import annotations

import pytest

from boards.system.tool import call, need, require
from edge_kit.errors import ImageError


def test_missing_tools_are_listed_with_their_packages(monkeypatch):
    with pytest.raises(ImageError, match="none-such-tool is not installed"):
        need("none-such-tool")
    monkeypatch.setattr("boards.system.tool.shutil.which", lambda *_a, **_k: None)
    with pytest.raises(ImageError, match="apt-get install dosfstools mtools"):
        require(["mcopy", "mdir", "mkfs.vfat"])


def test_failing_tool_is_quoted():
    with pytest.raises(ImageError, match=r"ls failed with 2: .*no-such-place"):
        call(["ls", "/no-such-place"])
