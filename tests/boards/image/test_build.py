"""Building: the order, its stage, and what is written."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from boards.data.board import load_board
from boards.image import build as build_module
from boards.image.build import Order, build, read_settings
from boards.image.packages import Deb, Mirrors
from boards.image.stage import Stage
from boards.image.wheels import Wheel
from boards.onboard.settings import Settings
from edge_kit.cli import cli
from edge_kit.errors import ConfigError, ImageError, UsageError
from edge_kit.records import from_json, to_json
from edge_kit.terminal.command_line import run_group
from tests.support.boards.stock import run, tools


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ("camra = 'auto'", "did you mean 'camera'"),
        ("fps = 'two'", "fps"),
        ("threads = 0", "threads = 0 lies outside 1 to 256"),
        ("engine = 'tensorrt'", "is none of"),
        ("broker = 'http://b'", "http"),
        ("broker = 'mqtt://cam:s3cret@b'", "password"),
    ],
)
def test_run_keys_that_the_device_refuses_are_refused(run, words, tmp_path):
    file = tmp_path / "device.toml"
    file.write_text(f"[run]\n{run}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_settings(file)
    said = f"{caught.value} {caught.value.hint}"
    assert words in said and str(file) in said and "s3cret" not in said
    # The name of the file that it was asked with says nothing to anybody.
    assert "/run" not in said.replace(str(file), "")


def test_run_keys_of_the_device_are_read(tmp_path):
    file = tmp_path / "device.toml"
    file.write_text(
        "[run]\ncamera = 'rtsp://u:p@c/1'\nbroker = 'mqtts://b'\nfps = 2\n"
        "keep_trying = false\ndevice_id = 'cam-7'\n",
        encoding="utf-8-sig",
    )
    assert read_settings(file).run["fps"] == 2


def order(tiny_bundle, tmp_path: Path, board: str = "qemu-virt", name: str = "o.img.xz") -> Order:
    return Order(
        board=load_board(board),
        bundle=tiny_bundle,
        settings=Settings(),
        photos=None,
        out=tmp_path / "out" / name,
        mirrors=Mirrors("http://a.example/debian"),
        cache=tmp_path / "cache",
    )


def test_stage_survives_encoding(tiny_bundle, tmp_path):
    stage = Stage(
        work=tmp_path,
        debs=[Deb("a", "1:2", "arm64", tmp_path / "a.deb")],
        wheels=[Wheel("b", "1", "0" * 64, tmp_path / "b.whl")],
        package=tmp_path,
        settings="",
        bundle=tmp_path,
        model="abc",
        photos=None,
        firmware=True,
        epoch=None,
    )
    assert from_json(Stage, json.loads(json.dumps(to_json(stage)))) == stage


@pytest.fixture
def fake_inputs(monkeypatch, tmp_path):
    """Downloads that are there already, so that only the build itself is tried."""
    deb = tmp_path / "a_1_all.deb"
    deb.write_bytes(b"deb")
    monkeypatch.setattr(build_module, "require", lambda _names: None)
    monkeypatch.setattr(build_module, "fetch", lambda *_a: [Deb("a", "1", "all", deb)])
    wheel = Wheel("w", "2", "0" * 64, tmp_path / "w.whl")
    monkeypatch.setattr(build_module, "fetch_wheels", lambda *_a: [wheel])
    monkeypatch.setattr("edge_kit.bundle.Bundle.end_files", lambda *_a: ())


@pytest.mark.parametrize("error", [ImageError("no"), KeyboardInterrupt()])
def test_interrupted_or_failed_build_leaves_nothing(
    tiny_bundle, tmp_path, fake_inputs, monkeypatch, error
):
    def fail(stage: Stage) -> None:
        (stage.work / "root").mkdir()
        (stage.work / "root/half").write_text("half")
        raise error

    monkeypatch.setattr(build_module, "_run_stage", fail)
    with pytest.raises(type(error)):
        build(order(tiny_bundle, tmp_path), lambda _text: None)
    assert list((tmp_path / "out").iterdir()) == []


@tools
def test_build_writes_image_map_checksum_and_bill(tiny_bundle, tmp_path, fake_inputs, monkeypatch):
    def stage_of_zeros(stage: Stage) -> None:
        for name in build_module.FILE_SYSTEMS:
            (stage.work / name).write_bytes(name.encode() * 1000 + bytes((1 << 20) - 9000))
            with (stage.work / name).open("r+b") as file:
                file.truncate(1 << 20)
        (stage.work / "epoch").write_text("1700000000\n")

    monkeypatch.setattr(build_module, "_run_stage", stage_of_zeros)
    wanted = order(tiny_bundle, tmp_path)
    told = build(wanted, lambda _text: None)
    names = sorted(p.name for p in wanted.out.parent.iterdir())
    assert names == ["o.img.xz", "o.img.xz.bmap", "o.img.xz.sbom.json", "o.img.xz.sha256"]
    run("xz", "--test", wanted.out)
    sums = subprocess.run(
        ["sha256sum", "-c", "o.img.xz.sha256"], cwd=wanted.out.parent, capture_output=True
    )
    assert sums.returncode == 0 and told["sha256"] in Path(f"{wanted.out}.sha256").read_text()
    bill = json.loads(Path(f"{wanted.out}.sbom.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    assert [c["name"] for c in bill["components"]] == ["a", "w", tiny_bundle.manifest.name]
    assert build(wanted, lambda _text: None)["sha256"] == told["sha256"]


def test_impossible_order_is_refused_first(tiny_bundle, tmp_path, fake_inputs):
    with pytest.raises(UsageError, match=r"end it with \.img\.xz"):
        build(order(tiny_bundle, tmp_path, name="o.img"), print)
    with pytest.raises(UsageError, match="image customize"):
        build(order(tiny_bundle, tmp_path, board="pi5"), print)


def test_invalid_settings_are_an_error_of_the_command(tiny_bundle, tmp_path, capsys):
    config = tmp_path / "device.toml"
    with pytest.raises(ConfigError, match=r"device\.toml"):
        read_settings(config)
    config.write_text("[wifi]\nssid = 'x'\n")
    args = ["image", "build", "--board", "pi3", "--bundle", str(tiny_bundle.root)]
    args += ["--config", str(config), "--out", str(tmp_path / "o.img.xz")]
    assert run_group(cli, "edge-kit", args) == 2
    assert "wifi.country must be two capital letters" in capsys.readouterr().err
