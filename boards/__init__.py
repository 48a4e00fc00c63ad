"""Board data, SD-card images and flashing. Nothing here yet but the name."""

from __future__ import annotations

__all__: list[str] = []
