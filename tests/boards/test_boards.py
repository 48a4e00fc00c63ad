"""Board data: read strictly, honest, and the same wheels wherever the same system runs."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from boards.cli import image
from boards.data.board import BOARDS, board_names, load_board, load_boards, read_board_file
from edge_kit.errors import ConfigError, UsageError

ROOT = Path(__file__).parents[2]
NAMES = ("pi3", "pi4", "pi5", "pizero2w", "qemu-virt")


def run(*args: str):
    return CliRunner().invoke(image, ["boards", *args], catch_exceptions=False)


def test_all_boards_are_listed():
    assert board_names() == NAMES
    assert tuple(b.name for b in load_boards()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_board_says_what_was_verified(name):
    board = load_board(name)
    assert board.booted in ("never", "emulated", "board")
    assert all(claim.how for claim in board.verified)


def test_system_has_the_same_engines_on_every_board():
    engines: dict[tuple[str, str], set[tuple[str, ...]]] = {}
    for board in load_boards():
        for system in board.systems:
            engines.setdefault((system.arch, system.python), set()).add(system.engines)
    assert {key: len(found) for key, found in engines.items()} == dict.fromkeys(engines, 1)
    # As PyPI has them: tflite-runtime ends with CPython 3.11, and alone has 32-bit wheels.
    assert engines[("armv7l", "3.11")] == {("tflite-runtime",)}
    assert engines[("armv7l", "3.13")] == {()}
    assert engines[("aarch64", "3.13")] == {("onnxruntime", "ai-edge-litert")}


def test_32_bit_system_has_tflite_runtime_only():
    board = load_board("pi3")
    assert "tflite-runtime only" in board.system("armv7l", "3.11").advice
    assert "no engine has a wheel" in board.system("armv7l", "3.13").advice
    assert board.system("aarch64", "3.11").advice == ""


def test_unknown_system_or_board_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"take one of: aarch64 with Python 3\.11"):
        load_board("pi4").system("riscv64", "3.11")
    with pytest.raises(UsageError, match="no board 'pi9'; take one of: pi3, pi4"):
        load_board("pi9")


def text_of(name: str) -> str:
    return (BOARDS / name / "board.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("cores = 4", "", "cores is missing"),
        ("cores = 4", "cores = '4'", "cpu.cores must be a whole number, not '4'"),
        ("cores = 4", "cores = true", "cpu.cores must be a whole number, not True"),
        ("threads = 4", "threads = 5", "threads must be 1 to cpu.cores"),
        ("schema = 1", "schema = 2", "schema 2 is not 1"),
        ('arch = "aarch64"\nthreads', 'arch = "arm"\nthreads', "arch must be one of"),
        ('engines = ["tflite-runtime"]', 'engines = ["onnxruntime"]', "tflite-runtime only"),
        ('engines = ["tflite-runtime"]', 'engines = ["tvm"]', "engines must be of"),
        ('engines = ["tflite-runtime"]', 'engines = "tflite-runtime"', "engines must be a list"),
        ('route = "build"', 'route = "magic"', "route must be one of"),
        ('route = "none"', 'route = "customize"', "no images are made for systems of 32 bits"),
        ('level = "never"', 'level = "surely"', "level must be one of"),
        ('what = "boot"', 'what = "boots"', "verified does not mention boot"),
        ("[cpu]", "cpu = 3\n[cpuu]", "cpu must be an object, not 3"),
        ("[cpu]", "[cpu", "cannot be read"),
    ],
)
def test_invalid_key_of_board_data_is_named(tmp_path, old, new, sentence):
    text = text_of("pi3")
    assert old in text
    file = tmp_path / "pi3/board.toml"
    file.parent.mkdir()
    file.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match=sentence):
        read_board_file(file)


def test_list_shows_boards_engines_and_the_32_bit_note():
    out = run().output
    assert all(name in out for name in NAMES)
    assert "tflite-runtime only" in out.replace("\n", " ")


@pytest.mark.parametrize("name", ["pi3", "pi4", "pi5", "pizero2w"])
def test_untried_board_has_a_check_for_its_owner(name):
    lines = [line.strip() for line in run(name).output.splitlines()]
    check = [line for line in lines if line.startswith("ssh root@")]
    assert len(check) == 3
    # People read it in three places; it is one check.
    for page in ("README.md", "docs/images.md"):
        text = [line.strip() for line in (ROOT / page).read_text(encoding="utf-8").splitlines()]
        assert [line for line in text if line.startswith("ssh root@")] == check
    assert "firmware stage" in " ".join(run().output.split())


def test_emulated_machine_has_no_check():
    assert "ssh root@" not in run("qemu-virt").output


@pytest.mark.parametrize("name", NAMES)
def test_details_show_all_claims(name):
    done = run(name)
    data = tomllib.loads(text_of(name))
    flat = " ".join(done.output.split())
    assert data["title"] in flat
    assert all(" ".join(claim["how"].split()) in flat for claim in data["verified"])


def test_json_has_all_data_and_the_advice():
    rows = json.loads(run("--json").output)
    assert [row["name"] for row in rows] == list(NAMES)
    by_system = {s["name"]: s["advice"] for s in rows[0]["systems"]}
    assert "tflite-runtime only" in by_system["Raspberry Pi OS Bookworm, 32-bit"]
    assert json.loads(run("pi5", "--json").output)[0]["cpu"]["dotprod"] is True


def test_edge_kit_has_the_image_group():
    from edge_kit.cli import cli

    done = CliRunner().invoke(cli, ["image", "--help"], catch_exceptions=False)
    assert "flash" in done.output
    assert "boards" in done.output
