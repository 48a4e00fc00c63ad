"""The commands of ``edge-kit image``, one file each; `boards.cli` names them."""

from __future__ import annotations

__all__: list[str] = []
