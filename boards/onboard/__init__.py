"""What an image carries besides the system: the service, the first boot, and their settings."""

from __future__ import annotations

__all__: list[str] = []
