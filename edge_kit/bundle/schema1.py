"""Bundles of schema 1: cuts, engines, exit rule and curve side by side; read, never written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edge_kit.errors import BundleError

__all__ = ["from_schema1"]


def from_schema1(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a `Manifest` from the JSON of schema 1.

    Every cut becomes a split with its own files and the exit rule and curve that all of them
    shared.

    Args:
        data: Content of ``manifest.json``.

    Raises:
        BundleError: It has another shape.
    """
    try:
        cuts, engines = list(data["cuts"]), list(data["engines"])
        for file in engines:
            if file["cut"] is not None and file["cut"] not in range(len(cuts)):
                raise BundleError(
                    f"the manifest's engine {file['path']} names cut {file['cut']}, which does not "
                    "exist",
                    "export it again",
                )
        return {
            **data,
            "splits": [_split(data, index) for index in range(len(cuts))],
            "full": [e for e in engines if e["role"] == "full"],
            "files": {path: {"sha256": digest} for path, digest in data["files"].items()},
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise BundleError(f"the manifest is not valid: {error!r}", "export it again") from None


def _split(data: Mapping[str, Any], index: int) -> dict[str, Any]:
    files = [e for e in data["engines"] if e["cut"] == index]
    return {
        **data["cuts"][index],
        "end": [e for e in files if e["role"] == "end"],
        "tail": next((e for e in files if e["role"] == "tail"), None),
        "exit": data["exit"],
        "curve": data["curve"],
        "costs": _costs(data.get("figures")),
    }


def _costs(figures: Any) -> dict[str, Any]:
    """Return what the exporter of that time kept among its figures of the test photos."""
    try:
        test = figures["test"]
        accuracy = {
            f"{who}_accuracy": test["accuracy"][who]["value"]
            for who in ("device", "cloud", "hybrid")
        }
        return {
            "message_bytes_mean": test["bytes_per_message"],
            "photos": test["photos"],
        } | accuracy
    except (KeyError, TypeError):
        return {}
