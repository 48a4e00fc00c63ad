"""Write a bundle of an older schema in the present one: same files, same model hash.

    python scripts/rewrite_bundle.py old.ekb new.ekb

The shipped bundle was rewritten so from schema 1 (docs/bundle-format.md).
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from edge_kit.bundle import MANIFEST, Bundle, pack
from edge_kit.bundle.manifest import SCHEMA, StoredFile


def rewrite(old: Bundle, root: Path) -> None:
    """Write a bundle's directory in the present schema, without its tuning."""
    for name in old.manifest.stored:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(old.root / name, root / name)
    files = {name: StoredFile.of(root / name) for name in old.manifest.files}
    manifest = replace(old.manifest, files=files, schema=SCHEMA)
    (root / MANIFEST).write_text(json.dumps(manifest.to_json(), indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line and rewrite."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="bundle, packed or not")
    parser.add_argument("new", type=Path, help="packed file to write")
    args = parser.parse_args()
    old = Bundle.open(args.old)
    with tempfile.TemporaryDirectory(prefix="edge-kit-rewrite-") as folder:
        root = Path(folder) / "bundle"
        root.mkdir()
        rewrite(old, root)
        pack(root, args.new)
        new = Bundle.open(root)
    before, after = old.manifest.model_hash, new.manifest.model_hash
    print(f"schema {old.manifest.schema}, model {before[:16]}")
    print(f"schema {new.manifest.schema}, model {after[:16]}: {args.new}")


if __name__ == "__main__":
    main()
