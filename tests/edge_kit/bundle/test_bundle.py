from __future__ import annotations

import json
import os
import shutil
import struct
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_kit.bundle import MANIFEST, Bundle, machine_arch, pack, sha256_file
from edge_kit.bundle import bundle as bundle_module
from edge_kit.errors import BundleError
from tests.support.tiny import CLASSES, make_bundle, with_split


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("original") / "tiny"
    make_bundle(root)
    (root / "labels.txt").write_text("\n".join(CLASSES))
    manifest = json.loads((root / MANIFEST).read_text())
    manifest["files"]["labels.txt"] = {"sha256": sha256_file(root / "labels.txt"), "size": 14}
    (root / MANIFEST).write_text(json.dumps(manifest))
    return root


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "tiny"))


@pytest.fixture(scope="module")
def packed(original: Path) -> Path:
    out = original.parent / "tiny.ekb"
    pack(original, out)
    return out


def edit(root: Path, **changes) -> None:
    data = json.loads((root / MANIFEST).read_text())
    (root / MANIFEST).write_text(json.dumps(data | changes))


def refused(path: Path, words: str, **options) -> BundleError:
    with pytest.raises(BundleError, match=words) as caught:
        Bundle.open(path, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def test_directory_opens(root):
    bundle = Bundle.open(root)
    assert bundle.manifest.classes == CLASSES
    assert bundle.path(bundle.end_files()[0]) == root / "end/any.onnx"
    assert bundle.tail_file().path == "cloud/tail.onnx"
    assert bundle.split.name == "pool"


def test_packed_file_opens_as_the_same_bundle(root, packed, tmp_path):
    bundle = Bundle.open(packed, cache=tmp_path / "cache")
    assert bundle.manifest == Bundle.open(root).manifest
    for name in (MANIFEST, "end/any.onnx", "cloud/tail.onnx", "labels.txt"):
        assert (bundle.root / name).read_bytes() == (root / name).read_bytes()


def test_pack_is_reproducible_and_skips_unlisted_files(root, packed, tmp_path):
    (root / "notes.txt").write_text("not in the manifest")
    os.utime(root / "labels.txt", (1, 1))
    (root / "labels.txt").chmod(0o600)
    out = tmp_path / "again.ekb"
    pack(root, out)
    assert out.read_bytes() == packed.read_bytes()
    assert "notes.txt" not in zipfile.ZipFile(out).namelist()


def test_packed_file_is_packed_again_to_the_same_bytes(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pack(packed, tmp_path / "again.ekb")
    assert (tmp_path / "again.ekb").read_bytes() == packed.read_bytes()


def test_packed_file_is_unpacked_once(packed, tmp_path):
    cache = tmp_path / "cache"
    first = Bundle.open(packed, cache=cache)
    before = (first.root / MANIFEST).stat().st_mtime_ns
    again = Bundle.open(packed, cache=cache)
    assert again.root == first.root
    assert (again.root / MANIFEST).stat().st_mtime_ns == before
    assert [p.name for p in cache.iterdir()] == [first.root.name]


@pytest.mark.parametrize("damage", ["truncate", "remove", "remove manifest"])
def test_damaged_unpacked_copy_is_replaced(packed, tmp_path, damage):
    cache = tmp_path / "cache"
    copy = Bundle.open(packed, cache=cache).root
    match damage:
        case "truncate":
            os.truncate(copy / "end/any.onnx", 10)
        case "remove":
            (copy / "end/any.onnx").unlink()
        case "remove manifest":
            (copy / MANIFEST).unlink()
    assert Bundle.open(packed, cache=cache).manifest.classes == CLASSES


def test_several_threads_unpack_into_one_folder(packed, tmp_path):
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: Bundle.open(packed, cache=tmp_path / "c"), range(8)))
    assert len({b.root for b in opened}) == 1


def test_missing_path_is_refused(tmp_path):
    refused(tmp_path / "none", "no bundle at")
    refused(tmp_path / ("x" * 300), "cannot be read")


def test_directory_without_manifest_is_refused(tmp_path):
    refused(tmp_path, "not a valid bundle: manifest.json is missing")


@pytest.mark.parametrize("name", ["end/any.onnx", "cloud/tail.onnx", "labels.txt"])
def test_truncated_changed_or_missing_file_is_named(root, name):
    whole = (root / name).read_bytes()
    (root / name).write_bytes(whole[:-1])
    refused(root, f"{name} .* truncated or was changed")
    (root / name).write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    refused(root, f"{name} .* truncated or was changed")
    (root / name).unlink()
    refused(root, f"{name} is missing")
    (root / name).mkdir()
    refused(root, f"{name} is missing")


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": 1', b"[" * 100_000])
def test_manifest_that_is_not_json_is_one_sentence(root, text):
    (root / MANIFEST).write_bytes(text)
    refused(root, "manifest.json")


def test_manifest_truncated_at_any_length_is_refused(root):
    whole = (root / MANIFEST).read_bytes()
    for length in range(0, len(whole), 97):
        (root / MANIFEST).write_bytes(whole[:length])
        refused(root, "manifest.json")


def test_newer_schema_says_what_to_update(root):
    edit(root, schema=99)
    refused(root, "schema 99.*update edge-kit")


def test_edited_manifest_is_refused(root):
    edit(root, classes=["green", "red", "blue"])
    refused(root, "model hash")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../b", "..\\secret", "a\0b"])
def test_manifest_that_names_a_file_outside_is_refused(root, name):
    (root.parent / "secret").write_text("s")
    files = json.loads((root / MANIFEST).read_text())["files"]
    edit(root, files=files | {name: {"sha256": "0" * 64, "size": 1}})
    refused(root, "outside the bundle")


def test_packed_file_with_an_entry_outside_is_refused(tmp_path):
    evil = tmp_path / "evil.ekb"
    for name in ("../escaped", "/tmp-escaped", "a/../../escaped"):
        with zipfile.ZipFile(evil, "w") as archive:
            archive.writestr(name, b"x")
        refused(evil, "outside", cache=tmp_path / "deep/cache")
    assert sorted(p.name for p in tmp_path.rglob("*escaped*")) == []


def test_packed_file_truncated_at_any_length_is_refused(packed, tmp_path):
    whole = packed.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 40)):
        cut = tmp_path / "cut.ekb"
        cut.write_bytes(whole[:length])
        refused(cut, "not a valid bundle file", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=150,
)
@given(st.data())
def test_damaged_packed_file_opens_unchanged_or_is_refused(packed, tmp_path, data):
    damaged = bytearray(packed.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        damaged[at] = data.draw(st.integers(0, 255))
    file = tmp_path / "damaged.ekb"
    file.write_bytes(damaged)
    try:
        assert Bundle.open(file, cache=tmp_path / "cache").manifest.classes == CLASSES
    except BundleError as error:
        assert error.hint or str(error)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)


def test_compressed_bomb_is_not_unpacked(tmp_path):
    bomb = tmp_path / "bomb.ekb"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(MANIFEST, bytes(50_000_000))
    refused(bomb, "compressed.*edge-kit bundle pack", cache=tmp_path / "cache")


def test_encrypted_entry_is_refused(packed, tmp_path):
    locked = bytearray(packed.read_bytes())
    at = locked.find(b"PK\x01\x02")
    struct.pack_into("<H", locked, at + 8, 1)
    file = tmp_path / "locked.ekb"
    file.write_bytes(locked)
    refused(file, "not a valid bundle file", cache=tmp_path / "cache")


def test_unwritable_cache_is_named(packed, tmp_path):
    (tmp_path / "file").write_text("in the way")
    refused(packed, "cannot unpack .* into", cache=tmp_path / "file/cache")


def test_cache_is_in_the_users_cache_folder(packed, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert Bundle.open(packed).root.parent == tmp_path / "edge-kit/bundles"


def test_user_without_a_home_is_told_where_to_unpack(packed, monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    refused(packed, "no home .* set XDG_CACHE_HOME")


def test_pack_without_target_folder_or_bundle_is_refused(root, tmp_path):
    with pytest.raises(BundleError, match="cannot write"):
        pack(root, tmp_path / "none/tiny.ekb")
    with pytest.raises(BundleError, match="is not a valid bundle"):
        pack(tmp_path, tmp_path / "tiny.ekb")


def test_architecture_without_end_model_is_told_which_exist(root):
    bundle = Bundle.open(root)
    other = with_split(bundle, end=(replace(bundle.split.end[0], arch="armv7l"),))
    assert other.end_files("armv7l")
    with pytest.raises(BundleError, match=r"runs on x86_64 \(it has: onnx for armv7l\)"):
        other.end_files("x86_64")


def test_bundle_without_cloud_half_says_so(root):
    with pytest.raises(BundleError, match="no cloud half for the split pool"):
        with_split(Bundle.open(root), tail=None).tail_file()


@pytest.mark.parametrize(
    ("machine", "pointer", "arch"),
    [
        ("x86_64", 8, "x86_64"),
        ("AMD64", 8, "x86_64"),
        ("arm64", 8, "aarch64"),
        ("aarch64", 8, "aarch64"),
        ("aarch64", 4, "armv7l"),
        ("armv7l", 4, "armv7l"),
        ("riscv64", 8, "riscv64"),
    ],
)
def test_machine_arch_is_the_manifests_name(monkeypatch, machine, pointer, arch):
    monkeypatch.setattr(bundle_module.platform, "machine", lambda: machine)
    monkeypatch.setattr(bundle_module.struct, "calcsize", lambda _format: pointer)
    assert machine_arch() == arch


def test_unreadable_file_is_one_sentence(root, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(bundle_module, "sha256_file", refuse)
    refused(root, "cannot be read: Permission denied")
