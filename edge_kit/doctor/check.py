"""What one check found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """What one check found.

    Attributes:
        name: What was looked at.
        ok: True; False when `edge-kit run` would fail; None for what is worth knowing.
        detail: The finding.
        hint: What to do; may be empty.
    """

    name: str
    ok: bool | None
    detail: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)
