"""A tiny bundle with labelled photos, for the tests of the benchmark."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from PIL import Image

from edge_kit.bundle import Bundle
from edge_kit.bundle.labelled_photos import INDEX
from edge_kit.bundle.manifest import StoredFile
from tests.support.tiny import write_manifest

# Right, right, wrong (the last one is red, whatever its label says), for the tiny model.
COLOURS = (("red", 0, (255, 0, 0)), ("green", 1, (0, 255, 0)), ("blue", 2, (250, 5, 5)))


def add_files(bundle: Bundle, files: Mapping[str, bytes]) -> Bundle:
    """Write files into a bundle and list them in its manifest."""
    for path, content in files.items():
        (bundle.root / path).parent.mkdir(parents=True, exist_ok=True)
        (bundle.root / path).write_bytes(content)
    listed = dict(bundle.manifest.files) | {p: StoredFile.of(bundle.root / p) for p in files}
    return write_manifest(bundle.root, replace(bundle.manifest, files=listed))


def add_reference(bundle: Bundle) -> Bundle:
    """Give a tiny bundle three labelled photos, of which its model knows two."""
    files: dict[str, bytes] = {}
    rows = []
    for name, label, colour in COLOURS:
        packed = io.BytesIO()
        Image.fromarray(np.full((16, 16, 3), colour, np.uint8)).save(packed, "PNG")
        path = f"reference/photos/{name}/000.png"
        files[path] = packed.getvalue()
        rows.append({"path": path, "label": label})
    index = json.dumps({"split": "test", "photos": rows}).encode()
    return add_files(bundle, {INDEX: index, **files})
