from __future__ import annotations

import gzip
import json
import os
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from boards.data.board import load_board
from boards.emulator.boot import boot_files, command_line, start
from boards.emulator.listener import DeviceListener, broker, broker_port
from boards.image import build as build_module
from boards.image.build import Order, build, read_settings
from boards.image.initrd import pack_cpio
from boards.image.packages import Deb, Mirrors, host_mirrors
from boards.image.partitions import assemble, make_ext4, make_fat, partitions
from boards.image.shortcuts import trust_authorities
from boards.image.stage import Stage
from boards.image.wheels import _PIN, Wheel, fetch_wheels
from boards.onboard.settings import Settings
from boards.system.namespace import run_as_root
from boards.system.tool import call, need, require
from edge_kit.cli import cli
from edge_kit.errors import ConfigError, ImageError, LinkError, UsageError
from edge_kit.link.link import Connected, Published
from edge_kit.link.mqtt import MqttLink
from edge_kit.records import from_json, to_json
from edge_kit.terminal.command_line import run_group
from edge_kit.wire import Refusal, ResultMessage
from tests.support.mosquitto import free_port
from tests.support.stock import run

EPOCH = 1_700_000_000
TOOLS = ("mkfs.vfat", "mcopy", "mke2fs", "debugfs", "sfdisk")
tools = pytest.mark.skipif(
    any(shutil.which(t, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None for t in TOOLS),
    reason=f"needs {', '.join(TOOLS)}",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "a folder").mkdir(parents=True)
    (root / "a folder/file").write_text("text")
    (root / "a folder/run").write_text("#!/bin/sh\n")
    (root / "a folder/run").chmod(0o4755)
    (root / "link").symlink_to("a folder/file")
    for path in (root / "a folder/file", root / "a folder/run", root / "a folder"):
        os.utime(path, (EPOCH - 5, EPOCH - 5))
    os.utime(root / "link", (EPOCH, EPOCH), follow_symlinks=False)
    os.utime(root, (EPOCH, EPOCH))
    return root


@tools
def test_the_same_files_make_the_same_file_systems_at_any_time(tree, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(tree, again, symlinks=True)
    os.utime(again / "link", (EPOCH, EPOCH), follow_symlinks=False)
    images = []
    for n, source in enumerate((tree, again)):
        out = tmp_path / f"{n}.ext4"
        make_ext4(source, out, "EDGEDATA", 3, EPOCH, 8)
        fat = tmp_path / f"{n}.fat"
        make_fat(source / "a folder", fat, EPOCH)
        images.append((out.read_bytes(), fat.read_bytes()))
        wait_for_the_next_second()
    assert images[0][0] == images[1][0]
    assert images[0][1] == images[1][1]


def wait_for_the_next_second():
    now = int(time.time())
    while int(time.time()) == now:
        time.sleep(0.05)


@tools
def test_a_file_system_keeps_modes_and_links_and_is_sound(tree, tmp_path):
    out = tmp_path / "out.ext4"
    make_ext4(tree, out, "EDGEDATA", 3, EPOCH, 8)
    told = run("debugfs", "-R", 'stat "/a folder/run"', out)
    assert "Mode:  04755" in told and f"0x{EPOCH:08x}" in told
    assert "a folder/file" in run("debugfs", "-R", "stat /link", out)
    run("e2fsck", "-fn", out)


@tools
def test_partitions_are_assembled_in_place_and_read_back(tree, tmp_path):
    parts = []
    for n, byte in enumerate((b"1", b"2")):
        parts.append(tmp_path / f"part{n}")
        parts[-1].write_bytes(byte * (1 << 20) + bytes(1 << 20))
    image = tmp_path / "whole.img"
    made = assemble(parts, ["c", "83"], image)
    assert partitions(image) == made
    assert [(p.start, p.size, p.kind) for p in made] == [
        (4 << 20, 2 << 20, "c"),
        (6 << 20, 2 << 20, "83"),
    ]
    data = image.read_bytes()
    assert data[4 << 20 : 8 << 20] == b"".join(p.read_bytes() for p in parts)
    # Zeros of the parts are no data of the image, so that its block map leaves them out.
    assert image.stat().st_blocks * 512 < len(data)
    with pytest.raises(ImageError, match=r"sfdisk failed|no partitions"):
        empty = tmp_path / "empty.img"
        empty.write_bytes(bytes(1 << 20))
        partitions(empty)


def test_the_ram_disk_is_a_cpio_that_other_programs_read(tree, tmp_path):
    packed = pack_cpio(tree)
    assert pack_cpio(tree) == packed and packed.startswith(b"070701")
    cpio = shutil.which("cpio")
    command = [cpio] if cpio else [shutil.which("busybox") or pytest.skip("needs cpio"), "cpio"]
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run([*command, "-i", "-d"], input=packed, cwd=out, check=True, capture_output=True)
    assert (out / "a folder/file").read_text() == "text"
    assert os.readlink(out / "link") == "a folder/file"  # noqa: PTH115
    assert (out / "a folder/run").stat().st_mode & stat.S_IXUSR


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


@pytest.mark.parametrize("python", ["3.11", "3.13"])
def test_every_wheel_is_pinned_by_its_hash(python):
    file = Path(build_module.__file__).parent / f"wheels-{python}-aarch64.txt"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    pins = _PIN.findall(file.read_text())
    assert len(pins) == len(lines) >= 7
    names = {name for name, _version, _hash in pins}
    assert {"numpy", "onnxruntime", "paho-mqtt", "click"} <= names
    assert names & {"tflite-runtime", "ai-edge-litert"}


def test_a_python_without_pins_is_told(tmp_path):
    with pytest.raises(ImageError, match=r"pinned for Python 2\.7"):
        fetch_wheels("2.7", tmp_path, print)


def test_the_kernels_command_line_is_the_images_but_for_the_console():
    line = command_line("console=tty0 console=ttyS1,115200 root=LABEL=EDGEROOT rw\n", "ttyAMA0")
    assert line == "console=ttyAMA0 root=LABEL=EDGEROOT rw"


@pytest.mark.parametrize(
    ("url", "port"),
    [("mqtt://10.0.2.2", 1883), ("mqtt://me@10.0.2.2:99/", 99)],
)
def test_the_brokers_port_is_read_from_the_settings(url, port):
    assert broker_port(Settings(run={"broker": url})) == port


@pytest.mark.parametrize("url", ["mqtt://broker.example", "mqtts://10.0.2.2", ""])
def test_a_broker_that_no_emulator_reaches_is_told(url):
    with pytest.raises(ImageError, match="does not reach"):
        broker_port(Settings(run={"broker": url}))


@pytest.mark.broker
def test_the_first_device_that_comes_online_is_heard_and_old_news_is_not(mosquitto):
    def say(topic: str, body: dict | ResultMessage) -> None:
        payload = json.dumps(body).encode() if isinstance(body, dict) else body.encode()
        link.publish(f"edgekit/1/{topic}", payload, qos=1, retain=True)

    link = MqttLink(mosquitto.address, "speaker", [])
    link.start()
    while not isinstance(link.events.get(timeout=30), Connected):
        pass
    say("old/status", {"state": "online"})
    while not isinstance(link.events.get(timeout=30), Published):
        pass
    with broker(mosquitto.port) as started:
        assert not started  # the one that listens is used
        listener = DeviceListener(mosquitto.port)
    try:
        deadline = time.monotonic() + 30
        while (
            not (listener.device and listener.answers and listener.refusals)
            and time.monotonic() < deadline
        ):
            say("edge-1/status", {"state": "online", "engine": "onnx"})
            say("edge-1/state", {"counters": {"frames": 3}})
            answer = ResultMessage(bytes(8), bytes(8), label=1, probabilities=(0.2, 0.8))
            say("edge-1/results", answer)
            say("edge-1/results", replace(answer, refusal=Refusal.ENGINE, probabilities=()))
            say("edge-1/results", {})  # no result at all
            listener.changed.wait(1)
            listener.changed.clear()
    finally:
        listener.close()
        link.stop()
    assert (listener.device, listener.status["engine"]) == ("edge-1", "onnx")
    assert listener.answers >= 1 and listener.refusals >= 1 and listener.counters == {"frames": 3}
    assert listener.answers <= listener.refusals + 1


def test_a_broker_is_started_where_none_listens():
    port = free_port()
    with broker(port) as started:
        assert started
        DeviceListener(port).close()
    with pytest.raises(LinkError, match="does not answer"):
        DeviceListener(port)


@tools
def test_an_image_without_a_kernel_cannot_be_booted_here(tmp_path, tree):
    fat = tmp_path / "fat"
    make_fat(tree / "a folder", fat, EPOCH)
    image = tmp_path / "x.img"
    assemble([fat], ["c"], image)
    with pytest.raises(ImageError, match="vmlinuz is missing"):
        boot_files(image, tmp_path, "")


def test_an_unknown_machine_is_told_before_anything_happens(tmp_path):
    with (
        pytest.raises(UsageError, match="take one of virt, raspi3b"),
        start(tmp_path / "none.img", "pdp11", print),
    ):
        pass


def test_missing_tools_are_told_all_at_once_with_their_packages(monkeypatch):
    with pytest.raises(ImageError, match="none-such-tool is not installed"):
        need("none-such-tool")
    monkeypatch.setattr("boards.system.tool.shutil.which", lambda *_a, **_k: None)
    with pytest.raises(ImageError, match="apt-get install dosfstools mtools"):
        require(["mcopy", "mdir", "mkfs.vfat"])


def test_a_failing_tool_is_told_with_its_last_words():
    with pytest.raises(ImageError, match=r"ls failed with 2: .*no-such-place"):
        call(["ls", "/no-such-place"])


def namespaces() -> bool:
    try:
        return run_as_root([sys.executable, "-c", ""]) == 0
    except ImageError:
        return False


@pytest.mark.skipif(not namespaces(), reason="needs user namespaces")
def test_a_step_is_root_with_mounts_and_users_of_its_own(tmp_path):
    step = (
        "import os, subprocess, pathlib\n"
        f"d = pathlib.Path({str(tmp_path)!r}) / 'mounted'\n"
        "d.mkdir()\n"
        "subprocess.run(['mount', '-t', 'tmpfs', 'x', d], check=True)\n"
        "(d / 'inside').touch()\n"
        f"f = pathlib.Path({str(tmp_path)!r}) / 'owned'\n"
        "f.touch()\n"
        "os.chown(f, 995, 44)\n"
        "raise SystemExit(7 if os.geteuid() == 0 and os.getpid() < 3 else 1)\n"
    )
    assert run_as_root([sys.executable, "-c", step]) == 7
    assert list((tmp_path / "mounted").iterdir()) == []  # the mount went with the namespace
    (tmp_path / "owned").unlink()


@pytest.mark.skipif(not namespaces(), reason="needs user namespaces")
def test_whoever_ends_a_build_ends_what_it_runs(tmp_path):
    """Killed with no chance to clean up, the step dies too, and all of its children."""
    started = tmp_path / "started"
    step = f"import subprocess; subprocess.run(['sh', '-c', 'touch {started}; sleep 300'])"
    outer = (
        "import sys; from boards.system.namespace import run_as_root\n"
        f"run_as_root([sys.executable, '-c', {step!r}])"
    )
    # Whoever still runs holds its end of the pipe open.
    child = subprocess.Popen(
        [sys.executable, "-c", outer], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not started.exists():
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        child.kill()
    assert child.communicate(timeout=60) == (b"", None)


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


def test_a_stage_survives_its_file(tiny_bundle, tmp_path):
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
def test_interrupted_or_failed_it_leaves_nothing(
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
def test_a_build_packs_maps_sums_and_lists(tiny_bundle, tmp_path, fake_inputs, monkeypatch):
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


def test_what_cannot_be_built_is_told_first(tiny_bundle, tmp_path, fake_inputs):
    with pytest.raises(UsageError, match=r"end it with \.img\.xz"):
        build(order(tiny_bundle, tmp_path, name="o.img"), print)
    with pytest.raises(UsageError, match="image customize"):
        build(order(tiny_bundle, tmp_path, board="pi5"), print)


def test_the_command_tells_mistakes_in_a_sentence(tiny_bundle, tmp_path, capsys):
    config = tmp_path / "device.toml"
    with pytest.raises(ConfigError, match=r"device\.toml"):
        read_settings(config)
    config.write_text("[wifi]\nssid = 'x'\n")
    args = ["image", "build", "--board", "pi3", "--bundle", str(tiny_bundle.root)]
    args += ["--config", str(config), "--out", str(tmp_path / "o.img.xz")]
    assert run_group(cli, "edge-kit", args) == 2
    assert "wifi.country must be two capital letters" in capsys.readouterr().err


def test_gzip_of_the_ram_disk_tells_no_time(tree):
    packed = gzip.compress(pack_cpio(tree), 6, mtime=0)
    assert packed[4:8] == bytes(4)
