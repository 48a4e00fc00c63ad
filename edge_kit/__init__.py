"""edge-kit: an embedded deployment kit with quantized engines."""

import os

# onnxruntime 1.32 and later give the machine an id in a database that they keep in the home
# directory, and report to their maker. They ask this at their import, so it is said before any.
# A device's owner who wants that sets the variable to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

from edge_kit.bundle import Bundle
from edge_kit.errors import EdgeKitError
from edge_kit.exits import ExitRule, normalized_entropy
from edge_kit.wire import FeatureMessage, ResultMessage

__all__ = [
    "Bundle",
    "EdgeKitError",
    "ExitRule",
    "FeatureMessage",
    "ResultMessage",
    "__version__",
    "normalized_entropy",
]

__version__ = "0.1.0"
