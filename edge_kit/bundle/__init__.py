"""Bundles: the directory, or one packed file of it, that an export makes and a board runs."""

from __future__ import annotations

from edge_kit.bundle.bundle import Bundle, machine_arch, pack
from edge_kit.bundle.manifest import MANIFEST, sha256_file

__all__ = ["MANIFEST", "Bundle", "machine_arch", "pack", "sha256_file"]
