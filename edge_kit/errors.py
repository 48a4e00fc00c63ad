"""Every error that edge-kit raises on purpose, and the exit code of its kind.

    EdgeKitError                1
    ├── UsageError              2   a flag or a value on the command line
    │   └── ConfigError         2   a configuration file or an environment variable
    ├── BundleError             3   a bundle that is damaged, tampered with or unfit for this board
    ├── EngineError             4   an inference engine that is missing, dies or disagrees
    │   └── MissingExtraError   4   an optional package that is not installed
    ├── SourceError             5   a camera, a photo, a folder or a video
    ├── LinkError               6   the broker, the network, certificates, credentials
    ├── SpoolError              7   the durable queue on the device: disk, permissions
    │   ├── SpoolTakenError     7   another process holds it, or a newer edge-kit wrote it
    │   └── SpoolDamagedError   7   its content is damaged
    ├── DecodeError             8   a message that breaks the wire format
    ├── ExportError             9   a model or a data set that cannot be exported
    │   └── GateError          10   a finished export whose figures miss their budget
    └── ImageError             11   a board's image, or the card that it goes to

A message says what happened, to what, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BundleError",
    "ConfigError",
    "DecodeError",
    "EdgeKitError",
    "EngineError",
    "ExportError",
    "GateError",
    "ImageError",
    "LinkError",
    "MissingExtraError",
    "SourceError",
    "SpoolDamagedError",
    "SpoolError",
    "SpoolTakenError",
    "UsageError",
]


class EdgeKitError(Exception):
    """Base of all deliberate errors.

    Args:
        what: What happened, and to what.
        hint: What the reader can do next; may be empty.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what if not hint else f"{what}; {hint}")
        self.what = what
        self.hint = hint


class UsageError(EdgeKitError):
    """A flag or an argument that cannot be used."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file or environment variable that cannot be used."""


class BundleError(EdgeKitError):
    """A bundle that is missing, damaged, tampered with or unfit for this board."""

    exit_code = 3


class EngineError(EdgeKitError):
    """An inference engine that is missing, crashes or cannot load a model."""

    exit_code = 4


class MissingExtraError(EngineError):
    """An optional package that is needed and not installed.

    Args:
        package: The distribution that is missing.
        extra: The extra of edge-kit that brings it.
        why: What needs it.
    """

    def __init__(self, package: str, extra: str, why: str) -> None:
        super().__init__(
            f"{why} needs {package}, which is not installed",
            f"install it with: pip install 'edge-kit[{extra}]'",
        )
        self.package = package
        self.extra = extra


class SourceError(EdgeKitError):
    """A camera, photo, folder or video that cannot be read."""

    exit_code = 5


class LinkError(EdgeKitError):
    """A broker that cannot be reached, refuses, or cannot be trusted."""

    exit_code = 6


class SpoolError(EdgeKitError):
    """The durable queue cannot be opened or written."""

    exit_code = 7


class SpoolTakenError(SpoolError):
    """The spool belongs to another process, or to a newer edge-kit: waiting does not help."""


class SpoolDamagedError(SpoolError):
    """What the spool's file holds is damaged."""


class DecodeError(EdgeKitError):
    """Bytes that break the wire format.

    Args:
        reason: A short stable word that counters use, such as ``"crc"``.
        what: The sentence for people.
    """

    exit_code = 8

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason


class ExportError(EdgeKitError):
    """A model, weights or a data set that cannot be exported."""

    exit_code = 9


class GateError(ExportError):
    """A finished export whose measured figure misses its budget.

    Args:
        figure: Name of the figure, such as ``"int8 agreement"``.
        measured: What was measured.
        budget: What was allowed.
    """

    exit_code = 10

    def __init__(self, figure: str, measured: float, budget: float, hint: str = "") -> None:
        super().__init__(f"{figure} is {measured:.4g}, the budget is {budget:.4g}", hint)
        self.figure = figure
        self.measured = measured
        self.budget = budget


class ImageError(EdgeKitError):
    """A board's image that is damaged, or a card that cannot or must not be written."""

    exit_code = 11
