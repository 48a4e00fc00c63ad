"""The manifest of a bundle: what it holds, what that needs, and how it measured.

The JSON form is documented in ``docs/bundle-format.md``. Readers ignore unknown keys.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from edge_kit.errors import BundleError
from edge_kit.exits import CurvePoint, ExitRule
from edge_kit.tensors import TensorSpec

__all__ = ["SCHEMA", "Cut", "EngineFile", "Manifest", "Preprocessing"]

SCHEMA = 1
RESIZE_RULES = ("squash", "crop")

_T = TypeVar("_T")


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
            raise ValueError(f"size {self.width} x {self.height} makes no image")

    def to_json(self) -> dict[str, Any]:
        """Return the manifest form."""
        return {
            "width": self.width,
            "height": self.height,
            "resize": self.resize,
            "colour": self.colour,
            "mean": list(self.mean),
            "std": list(self.std),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Preprocessing:
        """Read the manifest form."""
        return cls(
            int(data["width"]),
            int(data["height"]),
            str(data["resize"]),
            str(data["colour"]),
            tuple(float(v) for v in data["mean"]),
            tuple(float(v) for v in data["std"]),
        )


@dataclass(frozen=True)
class Cut:
    """A split point.

    Attributes:
        name: The traced module or tensor, such as ``blocks.7``.
        features: What crosses the network there, bottleneck applied. The scale and zero point
            hold for every engine; only the layout differs, and a message states its own.
        macs_share: Share of the full model's multiply-accumulates before the cut, 0 to 1.
    """

    name: str
    features: TensorSpec
    macs_share: float

    def to_json(self) -> dict[str, Any]:
        """Return the manifest form."""
        return {
            "name": self.name,
            "features": self.features.to_json(),
            "macs_share": self.macs_share,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Cut:
        """Read the manifest form."""
        features = TensorSpec.from_json(data["features"])
        return cls(str(data["name"]), features, float(data["macs_share"]))


@dataclass(frozen=True)
class EngineFile:
    """One model file of a bundle.

    Attributes:
        path: Relative to the bundle, with forward slashes.
        role: ``end``, ``tail`` or ``full``.
        engine: ``onnx`` or ``tflite``.
        arch: ``any``, ``x86_64``, ``aarch64`` or ``armv7l``.
        sha256: Hexadecimal digest of the file.
        size: Bytes.
        cut: Index into the manifest's cuts; None for ``full``.
        inputs: Tensors by signature name. ``end`` and ``full`` take ``image``, ``tail`` takes
            ``features``.
        outputs: ``end`` gives ``features`` and ``logits``; ``tail`` and ``full`` give ``logits``.
        requires: Versions, such as ``{"onnx_ir": 8, "opset": 17}`` or
            ``{"tflite_schema": 3, "ops": {"CONV_2D": 3}}``.
        figures: What the exporter measured of this file.
    """

    path: str
    role: str
    engine: str
    arch: str
    sha256: str
    size: int
    cut: int | None
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    requires: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the manifest form."""
        return {
            "path": self.path,
            "role": self.role,
            "engine": self.engine,
            "arch": self.arch,
            "sha256": self.sha256,
            "size": self.size,
            "cut": self.cut,
            "inputs": [s.to_json() for s in self.inputs],
            "outputs": [s.to_json() for s in self.outputs],
            "requires": dict(self.requires),
            "figures": dict(self.figures),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EngineFile:
        """Read the manifest form."""
        cut = data["cut"]
        return cls(
            path=str(data["path"]),
            role=str(data["role"]),
            engine=str(data["engine"]),
            arch=str(data["arch"]),
            sha256=str(data["sha256"]),
            size=int(data["size"]),
            cut=None if cut is None else int(cut),
            inputs=tuple(TensorSpec.from_json(s) for s in data["inputs"]),
            outputs=tuple(TensorSpec.from_json(s) for s in data["outputs"]),
            requires=dict(data.get("requires", {})),
            figures=dict(data.get("figures", {})),
        )


@dataclass(frozen=True)
class Manifest:
    """Everything that a bundle says of itself.

    Attributes:
        name: Model name, for people.
        classes: Class names; a label is an index into them.
        preprocessing: See `Preprocessing`.
        cuts: At least one.
        engines: Model files.
        exit: The rule that the device applies by default.
        curve: The threshold sweep on the calibration split, T ascending.
        files: Other files (reference tensors, report, labels): path to SHA-256.
        figures: What the exporter measured of the whole.
    """

    name: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    cuts: tuple[Cut, ...]
    engines: tuple[EngineFile, ...]
    exit: ExitRule
    curve: tuple[CurvePoint, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise ValueError("a classifier needs at least two classes")
        if not self.cuts:
            raise ValueError("no cut is listed")
        for file in self.engines:
            if file.cut is not None and not 0 <= file.cut < len(self.cuts):
                raise ValueError(f"{file.path} names cut {file.cut}, which does not exist")

    @property
    def model_hash(self) -> str:
        """SHA-256 over all that decides an answer: classes, preprocessing, cuts, model files.

        A file's tensor specs count too: a changed scale changes the answer.

        The exit rule is left out, so that a threshold can be tuned without a new worker.
        """
        identity = {
            "classes": list(self.classes),
            "preprocessing": self.preprocessing.to_json(),
            "cuts": [c.to_json() for c in self.cuts],
            "engines": [
                (f.path, f.sha256, [s.to_json() for s in (*f.inputs, *f.outputs)])
                for f in sorted(self.engines, key=lambda f: (f.path, f.sha256))
            ],
        }
        canonical = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def wire_id(self) -> bytes:
        """The 8 bytes of the model hash that messages carry."""
        return bytes.fromhex(self.model_hash)[:8]

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``manifest.json``."""
        return {
            "schema": SCHEMA,
            "name": self.name,
            "model_hash": self.model_hash,
            "classes": list(self.classes),
            "preprocessing": self.preprocessing.to_json(),
            "cuts": [c.to_json() for c in self.cuts],
            "engines": [f.to_json() for f in self.engines],
            "exit": self.exit.to_json(),
            "curve": [p.to_json() for p in self.curve],
            "files": dict(self.files),
            "figures": dict(self.figures),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        """Read the content of ``manifest.json``.

        Raises:
            BundleError: A newer schema, a missing or senseless field, or a model hash that does
                not match the content.
        """
        schema = data.get("schema")
        if isinstance(schema, bool) or not isinstance(schema, int) or schema < 1:
            raise BundleError("the manifest states no schema version", "export it again")
        if schema > SCHEMA:
            raise BundleError(
                f"the bundle has schema {schema}, this edge-kit reads up to {SCHEMA}",
                "update edge-kit on this machine",
            )
        try:
            manifest = _parse(data)
        except ValueError as error:
            raise BundleError(f"the manifest makes no sense: {error}", "export it again") from None
        if data.get("model_hash") != manifest.model_hash:
            raise BundleError(
                "the model hash does not match the manifest: it was edited or damaged",
                "copy the bundle again, or export it again",
            )
        return manifest


def _read(data: Mapping[str, Any], key: str, parse: Callable[[Any], _T]) -> _T:
    try:
        return parse(data[key])
    except KeyError as error:
        raise BundleError(f"the manifest lacks {error} (in {key!r})", "export it again") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BundleError(f"the manifest's {key!r} makes no sense: {error}") from None


def _parse(data: Mapping[str, Any]) -> Manifest:
    return Manifest(
        name=_read(data, "name", str),
        classes=_read(data, "classes", lambda v: tuple(str(c) for c in v)),
        preprocessing=_read(data, "preprocessing", Preprocessing.from_json),
        cuts=_read(data, "cuts", lambda v: tuple(Cut.from_json(c) for c in v)),
        engines=_read(data, "engines", lambda v: tuple(EngineFile.from_json(e) for e in v)),
        exit=_read(data, "exit", ExitRule.from_json),
        curve=_read(data, "curve", lambda v: tuple(CurvePoint.from_json(p) for p in v)),
        files=_read(data, "files", lambda v: {str(k): str(s) for k, s in v.items()}),
        figures=_read(data, "figures", dict),
    )
