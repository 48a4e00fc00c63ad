"""A bundle is written whole or not at all."""

from __future__ import annotations

import io
import json

import numpy as np
import onnx
import pytest

pytest.importorskip("torch")

from edge_kit.bundle import Bundle
from edge_kit.bundle.manifest import Preprocessing
from edge_kit.bundle.selftest import SELFTEST
from edge_kit.bundle.split import Split
from edge_kit.errors import BundleError, ExportError
from edge_kit.exits import CurvePoint, ExitRule
from exporters.engines.exported import Exported, describe
from exporters.writer import write_bundle
from tests.support import tiny

pytestmark = pytest.mark.export

PIXELS = np.random.default_rng(0).integers(0, 256, (4, 16, 16, 3)).astype(np.uint8)


@pytest.fixture
def files(tmp_path) -> list[Exported]:
    made = tmp_path / "made"
    made.mkdir()
    onnx.save(tiny.end_model(), made / "any.onnx")
    onnx.save(tiny.tail_model(), made / "tail.onnx")
    needs = {"onnx_ir": 8, "opset": 17}

    def entry(name: str, role: str, inputs: tuple, outputs: tuple) -> Exported:
        return describe(
            made / name,
            role=role,
            engine="onnx",
            arch="any",
            inputs=inputs,
            outputs=outputs,
            requires=needs,
        )

    return [
        entry("any.onnx", "end", (tiny.IMAGE,), (tiny.FEATURES, tiny.LOGITS)),
        entry("tail.onnx", "tail", (tiny.FEATURES,), (tiny.LOGITS,)),
    ]


def write(out, files, curve=(), **more) -> Bundle:
    arguments = {
        "name": "tiny",
        "classes": tiny.CLASSES,
        "preprocessing": Preprocessing(16, 16),
        "splits": [
            Split(
                "pool", tiny.FEATURES, 0.5,
                (files[0].entry,), files[1].entry, ExitRule(0.4, 1.5), curve,
            )
        ],
        "files": files,
        **more,
    }  # fmt: skip
    return write_bundle(out, **arguments)


def test_bundle_written_holds_all_given_parts(tmp_path, files):
    page = tmp_path / "page.html"
    page.write_text("<p>report</p>")
    bundle = write(
        tmp_path / "bundle",
        [files[0].with_figures(top1=0.9), files[1]],
        curve=(CurvePoint(0.1, 0.5, 0.9, 300.0),),
        selftest=PIXELS,
        reference={"reference/photos/red/000.jpg": b"red"},
        extra={"report.html": page, "notes.txt": b"hello"},
        figures={"gates": []},
    )
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest == bundle.manifest
    assert bundle.split.exit == ExitRule(0.4, 1.5)
    assert manifest.engines[0].figures == {"top1": 0.9}
    red = "reference/photos/red/000.jpg"
    assert set(manifest.files) == {"labels.txt", SELFTEST, red, "report.html", "notes.txt"}
    assert (bundle.root / red).read_bytes() == b"red"
    assert (bundle.root / "labels.txt").read_text() == "red\ngreen\nblue\n"
    assert (bundle.root / "report.html").read_text() == "<p>report</p>"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bundle", "made", "page.html"]


def test_selftest_of_each_end_file_holds_its_answers(tmp_path, files):
    bundle = write(tmp_path / "bundle", files, selftest=PIXELS)
    with np.load(io.BytesIO((bundle.root / SELFTEST).read_bytes())) as stored:
        np.testing.assert_array_equal(stored["pixels"], PIXELS)
        given = files[0](PIXELS)
        np.testing.assert_array_equal(stored["end/any.onnx:features"], given["features"])
        np.testing.assert_array_equal(stored["end/any.onnx:logits"], given["logits"])
        assert stored["end/any.onnx:features"].dtype == np.int8
        assert stored["end/any.onnx:labels"].tolist() == given["logits"].argmax(1).tolist()
        assert not [key for key in stored if "tail" in key]


def test_write_over_old_bundle_removes_its_files(tmp_path, files):
    out = tmp_path / "bundle"
    write(out, files, extra={"old.txt": b"old"})
    write(out, files, name="second")
    assert Bundle.open(out).manifest.name == "second"
    assert not (out / "old.txt").exists()


def test_write_that_fails_keeps_old_bundle(tmp_path, files):
    out = tmp_path / "bundle"
    write(out, files)
    before = (out / "manifest.json").read_bytes()
    files[0].source.write_bytes(b"changed after it was described")
    with pytest.raises(BundleError, match="SHA-256 differs"):
        write(out, files, name="second")
    assert (out / "manifest.json").read_bytes() == before
    Bundle.open(out)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_rename_that_fails_restores_old_bundle(tmp_path, files, monkeypatch):
    out = tmp_path / "bundle"
    write(out, files)
    real = type(out).rename

    def rename(self, target):
        if self.name == "bundle" and self.parent != tmp_path:
            raise OSError(28, "No space left on device")
        return real(self, target)

    monkeypatch.setattr(type(out), "rename", rename)
    with pytest.raises(ExportError, match="No space left on device; check free space"):
        write(out, files, name="second")
    monkeypatch.undo()
    assert Bundle.open(out).manifest.name == "tiny"


def test_write_into_foreign_folder_or_file_is_refused(tmp_path, files):
    out = tmp_path / "thesis"
    out.mkdir()
    (out / "chapter1.txt").write_text("years of work")
    with pytest.raises(ExportError, match="is not empty and is not a bundle"):
        write(out, files)
    assert (out / "chapter1.txt").read_text() == "years of work"
    taken = tmp_path / "taken"
    taken.write_text("")
    with pytest.raises(ExportError, match="is a file"):
        write(taken, files)


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a\\b", "labels.txt"])
def test_extra_file_outside_bundle_or_twice_is_refused(tmp_path, files, path):
    with pytest.raises(ExportError):
        write(tmp_path / "bundle", files, extra={"end/any.onnx": b"", path: b"x"})
    assert not (tmp_path / "bundle").exists()


def test_manifest_lists_engines_as_json(tmp_path, files):
    bundle = write(tmp_path / "bundle", files)
    data = json.loads((bundle.root / "manifest.json").read_text())
    (split,) = data["splits"]
    assert [split["end"][0]["path"], split["tail"]["path"]] == ["end/any.onnx", "cloud/tail.onnx"]
    assert set(data["files"]) == {"end/any.onnx", "cloud/tail.onnx", "labels.txt"}
