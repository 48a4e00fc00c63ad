from __future__ import annotations

import importlib.util
import json
import os

import pytest
from click.testing import CliRunner

from edge_kit.bundle.labelled_photos import INDEX
from edge_kit.cli import cli
from edge_kit.commands.doctor import doctor
from edge_kit.doctor import engines as engines_module
from edge_kit.doctor.check import Check
from edge_kit.doctor.engines import check_bundle, check_engines
from edge_kit.doctor.host import check_board, check_cameras, check_clock, check_disk
from edge_kit.engines.probe import ProbeResult
from edge_kit.errors import ConfigError
from edge_kit.host.board import Board, clock_synchronised, read_board
from edge_kit.terminal.command_line import run_group
from tests.support.labelled import add_files, add_reference
from tests.support.mosquitto import free_port
from tests.support.tiny import make_bundle
from tests.support.tiny_splits import make_bundle_with_two_splits


def without(monkeypatch, *packages: str) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name in packages else real(name, *rest),
    )


# the board


def write(root, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_raspberry_pi_is_known_by_its_device_tree(tmp_path):
    write(tmp_path, "proc/device-tree/model", "Raspberry Pi 4 Model B Rev 1.4\0")
    write(tmp_path, "proc/meminfo", "MemTotal: 3884328 kB\nMemAvailable: 3000000 kB\nOdd\n")
    write(tmp_path, "etc/os-release", 'NAME=x\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n')
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "48686\n")
    write(tmp_path, "sys/class/thermal/thermal_zone1/temp", "51200\n")
    board = read_board(tmp_path)
    assert board.model == "Raspberry Pi 4 Model B Rev 1.4"
    assert board.memory == 3884328 * 1024
    assert board.memory_free == 3000000 * 1024
    assert board.system == "Debian GNU/Linux 12 (bookworm)"
    assert board.temperature == 51.2
    assert board.cores == len(os.sched_getaffinity(0))
    check = check_board(board)
    assert check.ok
    for words in ("Raspberry Pi 4", "2929 of 3793 MiB", "bookworm", "51 °C", board.python):
        assert words in check.detail


def test_pc_is_known_by_dmi_and_missing_files_are_not_an_error(tmp_path):
    assert read_board(tmp_path / "empty").model == ""
    assert read_board(tmp_path / "empty").memory == 0
    assert "unknown model" in check_board(read_board(tmp_path / "empty")).detail
    write(tmp_path, "sys/class/dmi/id/sys_vendor", "QEMU\n")
    write(tmp_path, "sys/class/dmi/id/product_name", "Standard PC\n")
    assert read_board(tmp_path).model == "QEMU Standard PC"


def test_this_machine_has_cores_and_memory():
    board = read_board()
    assert isinstance(board, Board)
    assert board.cores >= 1
    assert board.memory >= board.memory_free > 0


# engines


def test_engines_that_work_have_versions():
    checks = {c.name: c for c in check_engines()}
    assert checks["engine onnx"].ok is True
    assert "onnxruntime 1." in checks["engine onnx"].detail
    assert not checks["engine onnx"].hint


def test_missing_engine_is_a_note_when_another_works(monkeypatch):
    without(monkeypatch, "tflite_runtime", "ai_edge_litert")
    checks = {c.name: c for c in check_engines(lambda _module: "")}
    assert checks["engine onnx"].ok is True
    assert checks["engine tflite"].ok is None
    assert checks["engine tflite"].hint == "pip install 'edge-kit[tflite]'"


def test_32_bit_system_is_not_sent_after_an_engine_without_wheels(monkeypatch):
    without(monkeypatch, "onnxruntime")
    monkeypatch.setattr("edge_kit.doctor.engines.machine_arch", lambda: "armv7l")
    onnx = next(c for c in check_engines(lambda _module: "") if c.name == "engine onnx")
    assert "gets tflite-runtime only" in onnx.detail
    assert "edge-kit[onnx]" not in onnx.hint and "edge-kit[tflite]" in onnx.hint


def test_no_engine_at_all_fails(monkeypatch):
    without(monkeypatch, "onnxruntime", "tflite_runtime", "ai_edge_litert")
    checks = list(check_engines(lambda _module: ""))
    assert [c.ok for c in checks] == [False, False]
    assert "edge-kit[onnx]" in checks[0].hint


def test_engine_that_dies_says_how():
    def run(module):
        return "dies with an illegal instruction on this CPU" if module == "onnxruntime" else ""

    check = next(iter(check_engines(run)))
    assert check.ok is not True
    assert "illegal instruction" in check.detail
    assert check.hint


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import edge_kit", ""),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import signal; signal.raise_signal(signal.SIGILL)", "illegal instruction"),
    ],
)
def test_imports_are_tried_in_a_process_of_their_own(code, words):
    problem = engines_module._import_problem(code.removeprefix("import "))
    assert problem == "" if not words else words in problem


def test_import_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr("edge_kit.doctor.engines._IMPORT_TIMEOUT_S", 0.1)
    assert "within 0 s" in engines_module._import_problem("json")


# the bundle


def test_sound_bundle_runs(tmp_path):
    make_bundle(tmp_path / "b")
    found = list(check_bundle(tmp_path / "b"))
    assert [c.ok for c in found] == [True, True]
    assert "tiny, 3 classes" in found[0].detail
    assert found[0].detail.endswith("no labelled photos")
    assert "ms a frame" in found[1].detail


def test_labelled_photos_are_told_and_a_broken_index_fails(tmp_path):
    bundle = add_reference(make_bundle(tmp_path / "b"))
    (check, *_) = check_bundle(bundle.root)
    assert check.detail.endswith("3 labelled photos of the test split")
    add_files(bundle, {INDEX: b"{"})
    (check,) = check_bundle(bundle.root)
    assert check.ok is False
    assert "photos.json" in check.detail and check.hint == "export the bundle again"


def test_tampered_bundle_fails(tmp_path):
    bundle = make_bundle(tmp_path / "b")
    with bundle.path(bundle.end_files()[0]).open("ab") as file:
        file.write(b"x")
    (check,) = check_bundle(tmp_path / "b")
    assert check.ok is False
    assert "SHA-256" in check.detail
    assert check.hint == "copy the bundle again"


def test_bundle_that_no_engine_runs_fails(tmp_path):
    make_bundle(tmp_path / "b")
    found = list(
        check_bundle(tmp_path / "b", trial=lambda *_a: ProbeResult(False, error="it dies"))
    )
    assert found[1].ok is False
    assert found[1].detail == "it dies"


@pytest.mark.parametrize(
    ("split", "name", "ok"),
    [("deep", "bundle", False), ("lite", "end model end/int8.tflite", True)],
)
def test_split_that_run_will_use_is_the_one_looked_at(tmp_path, split, name, ok):
    make_bundle_with_two_splits(tmp_path / "b")
    arguments = ["--bundle", str(tmp_path / "b"), "--json"]
    done = CliRunner(env={"EDGE_KIT_SPLIT": split}).invoke(doctor, arguments)
    found = {c["name"]: c["ok"] for c in json.loads(done.stdout)["checks"]}
    assert found[name] is ok and "end model end/any.onnx" not in found


# cameras, clock, disk


def test_board_without_camera_is_a_note(tmp_path):
    (check,) = check_cameras(tmp_path)
    assert check.ok is None
    assert "picamera2" in check.detail


def test_camera_that_may_not_be_opened_is_a_note(tmp_path):
    (tmp_path / "video0").touch()
    (check,) = check_cameras(tmp_path)
    assert check.ok is None
    assert "group 'video'" in check.hint


class PiDriver:
    @staticmethod
    def global_camera_info():
        return [{"Model": "imx708"}]


class BrokenDriver:
    @staticmethod
    def global_camera_info():
        raise RuntimeError("no permission for /dev/media0")


def test_picamera2_is_listed(tmp_path, monkeypatch):
    monkeypatch.setattr("edge_kit.doctor.host.find_picamera2", lambda: PiDriver)
    (check,) = check_cameras(tmp_path)
    assert (check.ok, check.detail) == (True, "imx708")
    monkeypatch.setattr("edge_kit.doctor.host.find_picamera2", lambda: BrokenDriver)
    (check,) = check_cameras(tmp_path)
    assert check.ok is None
    assert "sees no camera" in check.detail


@pytest.mark.parametrize(
    ("answer", "ok", "words"),
    [(True, True, "synchronised"), (False, None, "not synchronised"), (None, None, "be told")],
)
def test_clock_synchronised_is_ok_and_anything_else_a_note(answer, ok, words):
    check = check_clock(lambda: answer)
    assert check.ok is ok
    assert words in check.detail


def test_clock_that_was_never_set_fails():
    check = check_clock(lambda: True, now=lambda: 0.0)
    assert check.ok is False
    assert "1970-01-01" in check.detail


def test_kernel_is_asked():
    assert clock_synchronised() in (True, False, None)


def test_disk_with_little_room_is_a_note_and_a_full_one_fails(tmp_path, monkeypatch):
    assert check_disk(tmp_path / "not" / "yet" / "spool.db").ok is True

    class Usage:
        free = 100 << 20

    monkeypatch.setattr("shutil.disk_usage", lambda _p: Usage)
    assert check_disk(tmp_path).ok is None
    Usage.free = 1 << 20
    assert check_disk(tmp_path).ok is False
    monkeypatch.setattr(os, "access", lambda *_a: False)
    assert "may not write" in check_disk(tmp_path).detail
    assert "cannot be looked at" in check_disk(tmp_path / ("x" * 300)).detail


# the command


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*args):
        return CliRunner().invoke(doctor, [str(a) for a in args])

    return call


def test_all_well_is_zero(invoke, tmp_path):
    make_bundle(tmp_path / "b")
    result = invoke("--bundle", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert "all well" in result.output
    assert "ok    bundle: tiny" in result.output


def test_failure_is_not_zero_and_has_a_hint(invoke, tmp_path):
    result = invoke("--bundle", tmp_path / "none")
    assert result.exit_code == 1
    assert "FAIL  bundle" in result.output
    assert "→ check the path" in result.output
    assert "checks failed" in result.output


def test_json_holds_all_checks(invoke, tmp_path):
    make_bundle(tmp_path / "b")
    result = invoke("--bundle", tmp_path / "b", "--json")
    data = json.loads(result.stdout)
    assert data["well"] is True
    names = [c["name"] for c in data["checks"]]
    assert {"board", "engine onnx", "bundle", "clock", "disk"} <= set(names)
    assert set(data["checks"][0]) == {"name", "ok", "detail", "hint"}


def test_broker_that_is_not_there_fails(invoke):
    result = invoke("--broker", f"mqtt://127.0.0.1:{free_port()}", "--json")
    assert result.exit_code == 1
    (broker,) = [c for c in json.loads(result.stdout)["checks"] if c["name"] == "broker"]
    assert broker["ok"] is False


def test_password_comes_from_a_file_or_the_environment(invoke, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "edge_kit.doctor.examination.check_broker",
        lambda b, *_: seen.append(b) or Check("broker", True, ""),
    )
    (tmp_path / "secret").write_text("from a file\n")
    monkeypatch.setenv("EDGE_KIT_PASSWORD", "from the environment")
    invoke("--broker", "mqtt://me@hub", "--json")
    monkeypatch.delenv("EDGE_KIT_PASSWORD")
    invoke("--broker", "mqtt://me@hub", "--password-file", tmp_path / "secret", "--json")
    assert [b.password for b in seen] == ["from the environment", "from a file"]
    result = invoke("--broker", "mqtt://me@hub", "--password-file", tmp_path / "none")
    assert isinstance(result.exception, ConfigError)
    assert "cannot be read" in str(result.exception)


def test_missing_options_come_from_the_configuration(invoke, tmp_path):
    make_bundle(tmp_path / "b")
    (tmp_path / "edge-kit.toml").write_text('bundle = "b"\nspool = "here/spool.db"\n')
    result = invoke("--config", tmp_path / "edge-kit.toml", "--json")
    checks = {c["name"]: c for c in json.loads(result.stdout)["checks"]}
    assert checks["bundle"]["ok"] is True
    assert str(tmp_path) in checks["disk"]["detail"]


def test_through_the_command_edge_kit(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert run_group(cli, "edge-kit", ["doctor", "--bundle", str(tmp_path / "none")]) == 1
    assert "there is no bundle at" in capsys.readouterr().out
    assert run_group(cli, "edge-kit", ["doctor", "--broker", "ftp://x"]) == 2
    assert "edge-kit: error: broker scheme 'ftp'" in capsys.readouterr().err
