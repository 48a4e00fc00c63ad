"""`edge-kit demo`: broker, worker and device at work on photos that come along."""

from __future__ import annotations

from edge_kit.demo.figures import Answer, Figures
from edge_kit.demo.show import DemoConfig, run_demo

__all__ = ["Answer", "DemoConfig", "Figures", "run_demo"]
