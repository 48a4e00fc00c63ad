"""edge-kit: an embedded deployment kit with quantized engines."""

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
