"""What this board is, what works on it, and why the rest does not.

Each check is a function that returns `Check`s and raises nothing; `examine` runs them all.
"""

from edge_kit.doctor.check import Check
from edge_kit.doctor.examination import examine

__all__ = ["Check", "examine"]
