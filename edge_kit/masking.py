"""What stands for a secret wherever settings and addresses are shown."""

from __future__ import annotations

__all__ = ["MASK", "mask_address"]

MASK = "***"


def mask_address(url: str) -> str:
    """Return `url` with user, password and query masked; for messages. It need not be valid."""
    address, asked, _query = url.partition("?")
    scheme, mark, rest = address.partition("://") if "://" in address else ("", "", address)
    host, slash, path = rest.partition("/")
    _who, at, host = host.rpartition("@")
    who, query = f"{MASK}@" if at else "", f"?{MASK}" if asked else ""
    return f"{scheme}{mark}{who}{host}{slash}{path}{query}"
