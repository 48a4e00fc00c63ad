"""``tuning.json``: what may change on a device without a new model.

It is not part of the model's identity: no hash covers it, and workers need not know it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edge_kit import records
from edge_kit.bundle.split import Split, spoken
from edge_kit.errors import BundleError
from edge_kit.exits import CurvePoint, ExitRule

__all__ = ["TUNING", "Tuning", "read_tuning", "write_tuning"]

TUNING = "tuning.json"


@dataclass(frozen=True)
class Tuning:
    """What a device does differently from what its bundle says; None leaves it as it is.

    Attributes:
        split: Name of the split to run. Threshold, temperature and curve are those of this split;
            where none is named, of the bundle's first.
        threshold: T of the exit rule.
        temperature: Divides the logits; above 0.
        byte_budget: Bytes that the device may send; reserved: kept and shown, not applied yet.
        curve: The threshold sweep at this temperature, in place of the split's.
    """

    split: str | None = None
    threshold: float | None = None
    temperature: float | None = None
    byte_budget: int | None = None
    curve: tuple[CurvePoint, ...] = ()

    def __post_init__(self) -> None:
        if self.temperature is not None and self.temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature:g}")
        if self.byte_budget is not None and self.byte_budget < 0:
            raise ValueError(f"byte_budget must be at least 0, not {self.byte_budget}")

    def rule(self, split: Split) -> ExitRule:
        """Return a split's exit rule with this tuning applied."""
        own = split.exit
        return ExitRule(
            own.threshold if self.threshold is None else self.threshold,
            own.temperature if self.temperature is None else self.temperature,
        )

    def sentence(self) -> str:
        """Return what is tuned, for people; ``none`` when nothing is."""
        return spoken(self) or "none"


def read_tuning(root: Path) -> Tuning:
    """Return the tuning of a bundle's directory; without the file, one that changes nothing.

    Raises:
        BundleError: The file cannot be read, or a value in it is wrong.
    """
    file = root / TUNING
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Tuning()
    except (OSError, ValueError, RecursionError) as error:
        raise BundleError(f"{file} cannot be read: {error}", "correct it or remove it") from None
    return records.from_json(
        Tuning, data, str(file), error=lambda what: BundleError(what, "correct it or remove it")
    )


def write_tuning(root: Path, tuning: Tuning) -> None:
    """Write the tuning of a bundle's directory in one step.

    Raises:
        BundleError: It cannot be written; what was there is untouched.
    """
    part = root / (TUNING + ".part")
    content = {k: v for k, v in records.to_json(tuning).items() if v not in (None, [])}
    try:
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        part.replace(root / TUNING)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BundleError(
            f"{root / TUNING} cannot be written: {error.strerror}",
            "the old one is untouched; check permissions and free space",
        ) from None
