"""The checksum beside an image."""

from __future__ import annotations

import hashlib

import pytest

from boards.flash.checksum import check_checksum, find_checksum, read_checksum
from edge_kit.errors import ImageError

DATA = b"image" * 2_000_000
DIGEST = hashlib.sha256(DATA).hexdigest()
OTHER = "0" * 64


@pytest.fixture
def image(tmp_path):
    file = tmp_path / "a.img.xz"
    file.write_bytes(DATA)
    return file


def beside(image, text: str):
    file = image.with_name("a.img.xz.sha256")
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "text",
    [
        f"{DIGEST}  a.img.xz\n",
        f"{DIGEST} *a.img.xz",
        f"{DIGEST.upper()}  out/a.img.xz\r\n",
        f"{DIGEST}\n",
        f"{DIGEST}  before-it-was-renamed.img.xz\n",
        f"{OTHER}  b.img.xz\n{DIGEST}  a.img.xz\n\n",
    ],
)
def test_checksum_file_of_known_programs_is_read(image, text):
    file = beside(image, text)
    assert find_checksum(image) == file
    seen = []
    check_checksum(image, file, lambda *row: seen.append(row))
    assert seen[-1] == ("checking", len(DATA), len(DATA))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{OTHER}  a.img.xz\n", "is not the file that a.img.xz.sha256 was made of"),
        ("", "has no SHA-256 of a.img.xz"),
        ("<html>404</html>", "has no SHA-256 of a.img.xz"),
        (f"{DIGEST[:-1]}  a.img.xz", "has no SHA-256"),
        (f"{DIGEST}  b.img\n{OTHER}  c.img\n", "has no SHA-256"),
        (f"{DIGEST}  a.img.xz\n{OTHER}  a.img.xz\n", "has no SHA-256"),
    ],
)
def test_checksum_of_another_file_is_an_error(image, text, sentence):
    with pytest.raises(ImageError, match=sentence) as caught:
        check_checksum(image, beside(image, text), lambda *_: None)
    assert caught.value.exit_code == 11
    assert "fetch" in caught.value.hint


def test_unreadable_checksum_file_is_an_error(image, tmp_path):
    file = tmp_path / "a.img.xz.sha256"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ImageError, match="has no SHA-256 of"):
        read_checksum(file, "a.img.xz")
    with pytest.raises(ImageError, match="cannot be read"):
        read_checksum(tmp_path, "a.img.xz")


def test_image_without_a_checksum_file_is_not_compared(image):
    assert find_checksum(image) is None
    image.with_name("a.img.sha256").write_text(OTHER)  # of the unpacked image: another file
    assert find_checksum(image) is None
