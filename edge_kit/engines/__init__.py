"""Inference engines behind one small Protocol."""

from __future__ import annotations

from edge_kit.engines.engine import Engine, FakeEngine

__all__ = ["Engine", "FakeEngine"]
