"""What an image is made of: Debian's packages, authorities and Python wheels."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from boards.image import build as build_module
from boards.image import packages
from boards.image.packages import KEYRING, Mirrors, fetch, host_mirrors
from boards.image.shortcuts import trust_authorities
from boards.image.wheels import _PIN, fetch_wheels
from edge_kit.errors import ImageError
from tests.support.mosquitto import free_port


def test_trusted_authorities_are_linked_and_joined(tmp_path):
    shared = tmp_path / "usr/share/ca-certificates/mozilla"
    shared.mkdir(parents=True)
    (shared / "A (Root), 1.crt").write_text("one")
    (shared / "B.crt").write_text("two\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/ca-certificates.conf").write_text(
        "# comment\nmozilla/A (Root), 1.crt\n!mozilla/C.crt\nmozilla/B.crt\n"
    )
    trust_authorities(tmp_path)
    certs = tmp_path / "etc/ssl/certs"
    assert (certs / "ca-certificates.crt").read_text() == "one\ntwo\n"
    links = {p.name: str(p.readlink()) for p in certs.iterdir() if p.is_symlink()}
    assert links == {
        "A_=Root=__1.pem": "/usr/share/ca-certificates/mozilla/A (Root), 1.crt",
        "B.pem": "/usr/share/ca-certificates/mozilla/B.crt",
    }


def test_mirrors_are_those_of_this_machine(tmp_path):
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("# deb http://old.example/debian bookworm main\n")
    (tmp_path / "sources.list.d/other.list").write_text("deb http://other.example/apt stable x\n")
    with pytest.raises(ImageError, match="--mirror"):
        host_mirrors(tmp_path)
    (tmp_path / "sources.list.d/debian.sources").write_text(
        "Types: deb\nURIs: http://a.example/debian\nSuites: bookworm\n\n"
        "Types: deb\nURIs: http://a.example/debian-security\nSuites: bookworm-security\n"
    )
    found = host_mirrors(tmp_path)
    assert found == Mirrors("http://a.example/debian", "http://a.example/debian-security")
    lines = found.lines().splitlines()
    assert all("signed-by=" in line and "non-free-firmware" in line for line in lines)


@pytest.mark.skipif(
    shutil.which("apt-get") is None or not KEYRING.exists(), reason="needs Debian's apt"
)
def test_missing_mirror_is_an_error(tmp_path, monkeypatch):
    """apt alone would say that it knows no such package."""
    monkeypatch.setattr(packages, "_RETRIES", "0")
    nowhere = Mirrors(f"http://127.0.0.1:{free_port()}/debian")
    with pytest.raises(ImageError, match=r"lists cannot be fetched.*--mirror") as caught:
        fetch(("tzdata",), nowhere, tmp_path, lambda _text: None)
    assert "Unable to locate" not in str(caught.value)


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_wheels_are_pinned_by_hash(python):
    file = Path(build_module.__file__).parent / f"wheels-{python}-aarch64.txt"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    pins = _PIN.findall(file.read_text())
    assert len(pins) == len(lines) >= 7
    names = {name for name, _version, _hash in pins}
    assert {"numpy", "onnxruntime", "paho-mqtt", "click"} <= names
    assert names & {"tflite-runtime", "ai-edge-litert"}


def test_python_without_pins_is_an_error(tmp_path):
    with pytest.raises(ImageError, match=r"pinned for Python 2\.7"):
        fetch_wheels("2.7", tmp_path, print)
