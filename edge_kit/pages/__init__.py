"""HTML pages with charts that need no network: rooms say what is on a page, this one draws it."""

from __future__ import annotations

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

__all__ = [
    "Cell",
    "Gallery",
    "Grid",
    "Notes",
    "Page",
    "Photo",
    "Section",
    "Table",
    "Tiles",
    "check_installed",
    "render",
]
