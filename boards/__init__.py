"""Board data, and SD-card images: to build, to flash, to boot."""

from __future__ import annotations

__all__: list[str] = []
