"""Where frames come from: photos, folders, videos and cameras behind one Protocol."""

from __future__ import annotations

from edge_kit.sources.source import Frame, MemorySource, Source

__all__ = ["Frame", "MemorySource", "Source"]
