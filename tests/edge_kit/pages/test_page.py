"""A page is whole, escapes what it is given, and says what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edge_kit.errors import MissingExtraError
from edge_kit.pages.charts import Axis, plot
from edge_kit.pages.page import (
    Cell,
    Gallery,
    Grid,
    Notes,
    Page,
    Photo,
    Section,
    Table,
    Tiles,
    check_installed,
    render,
)
from tests.support.html import assert_standalone

ODD = "<i>&\"'"
DRAWING = plot(Axis("x"), Axis("y"))
BLOCKS = [
    Table(("", ODD), [(ODD, Cell(ODD, "good", ODD))], (1,)),
    Table((), [("only", "cells")]),
    Notes([ODD]),
    Notes([ODD], ODD),
    Tiles([(ODD, ODD)]),
    Grid([DRAWING, DRAWING]),
    Gallery([Photo(b"\xff\xd8", ODD, [(ODD, Cell(ODD, "bad"))], ODD)]),
    DRAWING,
]


def test_page_with_every_block_is_standalone_and_escaped():
    html = render(Page(ODD, ODD, [Section(ODD, ODD, BLOCKS), Section("", "", ())]))
    assert_standalone(html)
    assert "<i>" not in html and html.count("&lt;i&gt;&amp;") == 19
    assert html.count("<svg") == 3
    assert html.count("<th") == 2  # a table without a head has none
    assert '<td class="number"><span class="good">' in html


def test_page_has_a_light_and_a_dark_look():
    assert "prefers-color-scheme: dark" in render(Page("a", "", ()))


def test_missing_jinja_is_said_with_the_extra(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--html needs Jinja2.*edge-kit\[pages\]"):
        check_installed("edge-kit bench --html")
    with pytest.raises(MissingExtraError, match="Jinja2"):
        render(Page("a", "", ()))


def test_import_of_pages_does_not_load_jinja():
    code = (
        "import sys, edge_kit.pages, edge_kit.bench.report.page; sys.exit('jinja2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
