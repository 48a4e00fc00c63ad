"""What is known of each board: one ``boards/data/<name>/board.toml``, read strictly.

The data are facts that people check by hand, so a key that is missing is an error, not a default.
What was never tried says so in ``[[verified]]``.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_kit.errors import ConfigError, UsageError
from edge_kit.records import from_json, to_json

__all__ = [
    "BOARDS",
    "Board",
    "Boot",
    "Camera",
    "Cpu",
    "Memory",
    "System",
    "Verified",
    "board_names",
    "load_board",
    "load_boards",
    "read_board_file",
]

BOARDS = Path(__file__).parent
FILE = "board.toml"
SCHEMA = 1

ARCHES = ("aarch64", "armv7l")
ENGINES = ("onnxruntime", "tflite-runtime", "ai-edge-litert")
ROUTES = ("build", "customize", "none")
# From nothing to proof on hardware.
LEVELS = ("never", "looked up", "emulated", "board")


@dataclass(frozen=True)
class Cpu:
    """The processor.

    Attributes:
        soc: The chip's name.
        core: What its cores are, such as ``Cortex-A53``.
        cores: How many.
        mhz: Highest clock as sold; 0 where that means nothing.
        dotprod: Whether it has the int8 dot product instructions of Armv8.2.
    """

    soc: str
    core: str
    cores: int
    mhz: int
    dotprod: bool


@dataclass(frozen=True)
class Memory:
    """Memory.

    Attributes:
        mib: The sizes that are sold, MiB, smallest first.
        note: What else to know; may be empty.
    """

    mib: tuple[int, ...]
    note: str


@dataclass(frozen=True)
class Boot:
    """How the board starts.

    Attributes:
        firmware: What runs before the kernel, and where it is.
        device_trees: File names in the kernel's own tree; empty where none is needed.
        qemu: QEMU's name of the machine; empty where it has none.
    """

    firmware: str
    device_trees: tuple[str, ...]
    qemu: str


@dataclass(frozen=True)
class Camera:
    """Where cameras connect.

    Attributes:
        connector: Count and kind of connectors.
        note: Which system sees which cameras.
    """

    connector: str
    note: str


@dataclass(frozen=True)
class System:
    """An operating system on this board, and what edge-kit has there.

    Attributes:
        name: Such as ``Debian 12, 64-bit``.
        arch: ``aarch64`` or ``armv7l``, as bundles name it.
        python: The system's CPython, such as ``3.11``.
        route: ``build`` or ``customize``: how an image comes about; ``none`` where not at all.
        engines: Distributions that have a wheel here, best known first.
        note: What else to know; may be empty.
    """

    name: str
    arch: str
    python: str
    route: str
    engines: tuple[str, ...]
    note: str

    @property
    def bits(self) -> int:
        """Return 32 or 64."""
        return 32 if self.arch == "armv7l" else 64

    @property
    def advice(self) -> str:
        """Return what a person who is about to take this system should hear; may be empty."""
        if not self.engines:
            return f"no engine has a wheel for {self.name}: {self.note.rstrip('.')}"
        if self.bits == 32:
            return (
                f"{self.name} runs {self.engines[0]} only: the other engines have no wheels for "
                "32 bits. Bundles need an end model for tflite; a 64-bit system has all engines"
            )
        return ""


@dataclass(frozen=True)
class Verified:
    """One claim and its proof.

    Attributes:
        what: The claim.
        level: ``never`` (nobody tried), ``looked up``, ``emulated`` (in QEMU) or ``board``.
        how: What was done, or why nothing was.
    """

    what: str
    level: str
    how: str


@dataclass(frozen=True)
class Board:
    """One board.

    Attributes:
        schema: Version of the file's format.
        name: The directory's name, as ``--board`` takes it.
        title: Its maker's name for it.
        also: Other boards that the same data fits.
        arch: Best architecture, as bundles name it.
        threads: Engine threads by default.
        cpu: The processor.
        memory: Memory.
        boot: How it starts.
        camera: Where cameras connect.
        systems: Operating systems, the first being the one that images take.
        verified: What was tried, and what was not.
    """

    schema: int
    name: str
    title: str
    also: tuple[str, ...]
    arch: str
    threads: int
    cpu: Cpu
    memory: Memory
    boot: Boot
    camera: Camera
    systems: tuple[System, ...]
    verified: tuple[Verified, ...]

    def system(self, arch: str, python: str) -> System:
        """Return the system of an architecture and a Python.

        Raises:
            UsageError: The data list none; the message says which there are.
        """
        for system in self.systems:
            if (system.arch, system.python) == (arch, python):
                return system
        known = ", ".join(f"{s.arch} with Python {s.python}" for s in self.systems)
        raise UsageError(
            f"nothing is known of {self.title} under {arch} with Python {python}",
            f"take one of: {known}",
        )

    @property
    def booted(self) -> str:
        """Return the level to which booting was proven."""
        return next((v.level for v in self.verified if v.what == "boot"), "never")

    def to_json(self) -> dict[str, Any]:
        """Return all of it, with each system's advice."""
        systems = [to_json(s) | {"advice": s.advice} for s in self.systems]
        return to_json(self) | {"systems": systems}  # type: ignore[no-any-return]


def board_names() -> tuple[str, ...]:
    """Return the names of all boards, sorted."""
    return tuple(sorted(f.parent.name for f in BOARDS.glob(f"*/{FILE}")))


def load_board(name: str) -> Board:
    """Read one board's data.

    Raises:
        UsageError: There is no such board.
        ConfigError: Its file is damaged.
    """
    if name not in board_names():
        raise UsageError(f"there is no board {name!r}", f"take one of: {', '.join(board_names())}")
    return read_board_file(BOARDS / name / FILE)


def load_boards() -> tuple[Board, ...]:
    """Read all boards, sorted by name."""
    return tuple(load_board(name) for name in board_names())


def read_board_file(file: Path) -> Board:
    """Read a ``board.toml``; the board's name is its directory's.

    Raises:
        ConfigError: A key is missing or has an invalid value; the message names it.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    board = from_json(Board, data | {"name": file.parent.name}, str(file), error=ConfigError)
    _check(board, str(file))
    return board


def _check(board: Board, where: str) -> None:
    systems, levels = board.systems, [v.level for v in board.verified]
    arches = {board.arch, *(s.arch for s in systems)}
    narrow = [s for s in systems if s.bits == 32]
    for valid, what in (
        (board.schema == SCHEMA, f"schema {board.schema} is not {SCHEMA}"),
        (arches <= set(ARCHES), f"arch must be one of {ARCHES}"),
        (1 <= board.threads <= board.cpu.cores, "threads must be 1 to cpu.cores"),
        (board.memory.mib, "memory.mib is empty"),
        (systems, "it lists no systems"),
        (any(v.what == "boot" for v in board.verified), "verified does not mention boot"),
        ({s.route for s in systems} <= set(ROUTES), f"route must be one of {ROUTES}"),
        ({e for s in systems for e in s.engines} <= set(ENGINES), f"engines must be of {ENGINES}"),
        (all(set(s.engines) <= {"tflite-runtime"} for s in narrow),
         "a system of 32 bits has wheels of tflite-runtime only"),
        (all(s.route == "none" for s in narrow), "no images are made for systems of 32 bits"),
        (set(levels) <= set(LEVELS), f"level must be one of {LEVELS}"),
    ):  # fmt: skip
        if not valid:
            raise ConfigError(f"{where}: {what}")
