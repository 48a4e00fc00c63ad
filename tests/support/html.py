"""Check an HTML page without a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = frozenset({"meta", "img", "br"})


class _Checker(HTMLParser):
    """Finds tags that are left open and every address that the page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [v for k, v in attrs if k in ("src", "href") and not v.startswith("data:")]

    def handle_startendtag(self, tag, attrs):
        pass  # <path/> and the like; nothing of ours fetches anything by them

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def assert_standalone(page: str) -> None:
    """Fail if a page has unbalanced tags, fetches anything, or runs a script."""
    checker = _Checker()
    checker.feed(page)
    assert page.startswith("<!doctype html>")
    assert checker.open == []
    assert checker.fetched == []
    assert "http" not in re.sub(r"data:image[^\"]*", "", page)
    assert "<script" not in page and "@import" not in page and "url(" not in page
