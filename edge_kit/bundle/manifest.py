"""The manifest of a bundle: what it holds, what that needs, and how it measured.

The JSON form is documented in ``docs/bundle-format.md``. Readers ignore unknown keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edge_kit import records
from edge_kit.bundle.schema1 import from_schema1
from edge_kit.bundle.split import EngineFile, Split
from edge_kit.errors import BundleError

__all__ = ["MANIFEST", "SCHEMA", "Manifest", "Preprocessing", "StoredFile", "sha256_file"]

MANIFEST = "manifest.json"
SCHEMA = 2
RESIZE_RULES = ("squash", "crop")
# The position of a model file states its role; digest and size are in the table of files.
_ELSEWHERE = ("role", "sha256", "size")


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the pixels that an end model takes.

    Attributes:
        width: Pixels.
        height: Pixels.
        resize: ``squash`` (both sides to size) or ``crop`` (short side to size, centre kept).
        colour: Channel order, ``RGB``.
        mean: Per channel, in pixel units (0 to 255). The engine file already contains it.
        std: Likewise.
    """

    width: int
    height: int
    resize: str = "squash"
    colour: str = "RGB"
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        if self.resize not in RESIZE_RULES:
            raise ValueError(f"resize rule {self.resize!r} is not one of {RESIZE_RULES}")
        if self.colour != "RGB":
            raise ValueError(f"colour order {self.colour!r} is not RGB")
        if self.width < 1 or self.height < 1:
            raise ValueError(f"size {self.width} x {self.height} must be at least 1 x 1")


@dataclass(frozen=True)
class StoredFile:
    """A file of a bundle as its table of files lists it.

    Attributes:
        sha256: Hexadecimal digest.
        size: Bytes; None where a bundle of schema 1 did not tell.
    """

    sha256: str
    size: int | None = None

    @classmethod
    def of(cls, path: Path) -> StoredFile:
        """Hash a file.

        Raises:
            OSError: It cannot be read.
        """
        return cls(sha256_file(path), path.stat().st_size)


@dataclass(frozen=True)
class Manifest:
    """Everything that a bundle says of itself.

    Attributes:
        name: Model name, for people.
        classes: Class names; a label is an index into them.
        preprocessing: See `Preprocessing`.
        splits: At least one; the first is the one that a device takes by default. A message
            carries the index of its split.
        full: The whole model, float, for comparison.
        files: Other files (reference tensors, report, labels), by path.
        figures: What the exporter measured of the whole.
        schema: Of the file that this was read from.
    """

    name: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    splits: tuple[Split, ...]
    full: tuple[EngineFile, ...] = ()
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise ValueError("a classifier needs at least two classes")
        if not self.splits:
            raise ValueError("no split is listed")
        if len({s.name for s in self.splits}) < len(self.splits):
            raise ValueError("two splits have the same name")

    @property
    def engines(self) -> tuple[EngineFile, ...]:
        """All model files; one that several splits share appears for each of them."""
        return (*(f for s in self.splits for f in s.engines), *self.full)

    @property
    def stored(self) -> dict[str, StoredFile]:
        """The table of files: every file but the manifest and the tuning, each once."""
        return {f.path: StoredFile(f.sha256, f.size) for f in self.engines} | dict(self.files)

    @property
    def model_hash(self) -> str:
        """SHA-256 over all that decides an answer: classes, preprocessing, splits, model files.

        A file's tensor specs count too: a changed scale changes the answer. Exit rules, curves and
        costs are left out, so that a threshold can be tuned without a new worker. A bundle with one
        split has the hash that it would have had under schema 1.
        """
        identity: dict[str, Any] = {
            "classes": list(self.classes),
            "preprocessing": records.to_json(self.preprocessing),
            "cuts": [
                {
                    "name": s.name,
                    "features": records.to_json(s.features),
                    "macs_share": s.macs_share,
                }
                for s in self.splits
            ],
            "engines": [
                (f.path, f.sha256, [records.to_json(t) for t in (*f.inputs, *f.outputs)])
                for f in sorted(self.engines, key=lambda f: (f.path, f.sha256))
            ],
        }
        if self.schema > 1 and len(self.splits) > 1:
            # Which file belongs to which split decides answers too.
            identity["splits"] = [[f.path for f in s.engines] for s in self.splits]
        canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def wire_id(self) -> bytes:
        """The 8 bytes of the model hash that messages carry."""
        return bytes.fromhex(self.model_hash)[:8]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``manifest.json``, in the present schema."""

        def entry(file: EngineFile) -> dict[str, Any]:
            content = records.to_json(file)
            return {key: content[key] for key in content if key not in _ELSEWHERE}

        content: dict[str, Any] = records.to_json(self)
        return content | {
            "schema": SCHEMA,
            "model_hash": self.model_hash,
            "splits": [
                records.to_json(s)
                | {"end": [entry(f) for f in s.end], "tail": s.tail and entry(s.tail)}
                for s in self.splits
            ],
            "full": [entry(f) for f in self.full],
            "files": {path: records.to_json(file) for path, file in self.stored.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """Read the content of ``manifest.json``, of this schema or an older one.

        Raises:
            BundleError: A newer schema, a missing or wrong field, or a model hash that does not
                match the content.
        """
        schema = data.get("schema")
        if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
            raise BundleError("the manifest states no schema version", "export it again")
        if schema > SCHEMA:
            raise BundleError(
                f"the bundle has schema {schema}, this edge-kit reads up to {SCHEMA}",
                "update edge-kit on this machine",
            )
        content = from_schema1(data) if schema == 1 else _joined(data)
        manifest = records.from_json(cls, content, MANIFEST, error=_invalid)
        if data.get("model_hash") != manifest.model_hash:
            raise BundleError(
                "the model hash does not match the manifest: it was edited or damaged",
                "copy the bundle again, or export it again",
            )
        return manifest


def sha256_file(path: Path) -> str:
    """Return the hexadecimal SHA-256 of a file.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _invalid(what: str) -> BundleError:
    return BundleError(what, "export the bundle again")


def _joined(data: Mapping[str, Any]) -> dict[str, Any]:
    """Give each model file its role, digest and size; what is malformed stays as it is."""
    files, splits, full = data.get("files"), data.get("splits"), data.get("full", [])
    if not isinstance(files, dict):
        raise _invalid(f"{MANIFEST}: files is missing or is not an object")
    if not (isinstance(splits, list) and isinstance(full, list)):
        return dict(data)
    models: set[str] = set()

    def join(entry: Any, role: str) -> Any:
        if not isinstance(entry, dict) or not isinstance(path := entry.get("path"), str):
            return entry
        if not isinstance(stored := files.get(path), dict):
            raise _invalid(f"{MANIFEST}: files does not list the model file {path!r}")
        models.add(path)
        return entry | stored | {"role": role}

    def split(entry: Any) -> Any:
        if not isinstance(entry, dict) or not isinstance(ends := entry.get("end"), list):
            return entry
        return entry | {
            "end": [join(e, "end") for e in ends],
            "tail": join(entry.get("tail"), "tail"),
        }

    return dict(data) | {
        "splits": [split(s) for s in splits],
        "full": [join(e, "full") for e in full],
        "files": {path: stored for path, stored in files.items() if path not in models},
    }
