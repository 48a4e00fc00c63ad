"""What a page is made of, and the page as one HTML document."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edge_kit.errors import MissingExtraError
from edge_kit.pages.charts import Drawing

__all__ = [
    "Block",
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

_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Cell:
    """Text with a meaning that the page shows by its look.

    Attributes:
        text: Plain text.
        look: ``good``, ``bad``, ``soft``, ``strong``, ``code``, or empty.
        note: Plain text behind it, in small print.
    """

    text: str
    look: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells; `numbers` are the columns, from 0, that are aligned to the right."""

    kind: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    numbers: Collection[int] = ()


@dataclass(frozen=True)
class Notes:
    """A list of sentences; with a title it is a warning in a box."""

    kind: ClassVar[str] = "notes"
    items: Sequence[str]
    title: str = ""


@dataclass(frozen=True)
class Tiles:
    """Figures to see at a glance, each with what it means."""

    kind: ClassVar[str] = "tiles"
    items: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    """Drawings side by side."""

    kind: ClassVar[str] = "grid"
    drawings: Sequence[Drawing]


@dataclass(frozen=True)
class Photo:
    """A photo and what was said of it.

    Attributes:
        jpeg: The file.
        title: Such as its true class.
        answers: Who said what.
        note: In small print below.
    """

    jpeg: bytes
    title: str
    answers: Sequence[tuple[str, Cell]]
    note: str

    @property
    def address(self) -> str:
        """The file as an address that needs no network."""
        return f"data:image/jpeg;base64,{base64.b64encode(self.jpeg).decode()}"


@dataclass(frozen=True)
class Gallery:
    """Photos in a grid."""

    kind: ClassVar[str] = "gallery"
    photos: Sequence[Photo]


Block = Table | Notes | Tiles | Grid | Gallery | Drawing


@dataclass(frozen=True)
class Section:
    """A heading, a sentence or two, and blocks below them; each may be missing."""

    title: str
    lead: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Page:
    """A whole page. All texts are plain: `render` escapes them."""

    title: str
    lead: str
    sections: Sequence[Section]


def check_installed(what: str, extra: str = "pages") -> None:
    """Refuse early what would fail at the end of a long run.

    Args:
        what: What needs the page, such as ``edge-kit bench --html``.
        extra: The extra of edge-kit to install.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise MissingExtraError("Jinja2", extra, what)


def render(page: Page) -> str:
    """Return a page as one HTML document that needs nothing else.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    check_installed("an HTML page")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(page=page)
