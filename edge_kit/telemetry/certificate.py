"""How long this client's certificate is good, and whether its renewal works.

On boards that enrol, `boards.onboard.enroll` writes ``renewal.json`` beside the certificate after
each try. Certificates from elsewhere have none.
"""

from __future__ import annotations

import json
import ssl
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Certificate", "read_certificate"]

DAY_S = 86400.0
# The renewal looks about once a day.
RENEWAL_SILENT_S = 3 * DAY_S
LAST_DAYS = 14.0
LAST_SHARE = 1 / 6  # a renewal is due in the last third of a certificate's life


@dataclass(frozen=True)
class Certificate:
    """What is known of a client certificate.

    Attributes:
        days_left: Until it expires; below 0 once it has.
        renewed_at: Unix time at which its renewal last worked, or found nothing to do; None where
            nothing renews it, or it never worked.
        error: Why the renewal's last try failed; empty when it did not.
        problem: What is wrong, as a sentence; empty when all is well.
    """

    days_left: float
    renewed_at: float | None
    error: str
    problem: str

    def to_json(self) -> dict[str, Any]:
        """Return what ``…/state`` tells."""
        return {k: v for k, v in asdict(self).items() if k != "problem"}


def read_certificate(path: Path, now: float | None = None) -> Certificate | None:
    """Read a certificate and the notes of its renewal.

    Args:
        path: PEM; the first certificate counts.
        now: Unix time, seconds.

    Returns:
        None when the file cannot be read, which connecting tells better.
    """
    now = time.time() if now is None else now
    try:
        # Of CPython's own tests, and the one place of the standard library that reads PEM files.
        decoded = ssl._ssl._test_decode_cert(str(path))  # type: ignore[attr-defined]
        begins, ends = (ssl.cert_time_to_seconds(decoded[k]) for k in ("notBefore", "notAfter"))
    except (OSError, AttributeError, KeyError, ValueError):
        return None
    renewal = _read_renewal(path.with_name("renewal.json"))
    renewed_at, error = renewal.get("succeeded_at"), str(renewal.get("error", ""))
    left = (ends - now) / DAY_S
    problem = ""
    if left < 0:
        problem = f"the certificate {path} has expired"
    elif left < min(LAST_DAYS, (ends - begins) / DAY_S * LAST_SHARE):
        problem = f"the certificate {path} expires in {left:.1f} days"
    elif renewal and now - (renewed_at or 0.0) > RENEWAL_SILENT_S:
        problem = f"the renewal of the certificate {path} has not worked for three days"
    if problem and error:
        problem += f"; its renewal failed: {error}"
    return Certificate(round(left, 2), renewed_at, error, problem)


def _read_renewal(path: Path) -> dict[str, Any]:
    try:
        notes = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return notes if isinstance(notes, dict) else {}
