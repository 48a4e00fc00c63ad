"""The commands of ``edge-kit``, one file each; `edge_kit.cli` finds them by name."""

from __future__ import annotations

__all__: list[str] = []
