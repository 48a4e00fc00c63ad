"""Images for SD cards: built from Debian packages, put into a stock image, booted in QEMU."""

from __future__ import annotations

__all__: list[str] = []
