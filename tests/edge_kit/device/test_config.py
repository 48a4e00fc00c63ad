from __future__ import annotations

from pathlib import Path

import pytest

from edge_kit.device.config import resolve
from edge_kit.errors import ConfigError


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "edge-kit.toml"


def test_flags_win_over_environment_over_file_over_defaults(toml):
    toml.write_text('threads = 1\nwindow = 3\nlinger = 7\nengine = "onnx"\n')
    env = {"EDGE_KIT_THREADS": "2", "EDGE_KIT_LINGER": "8", "HOME": "/home/x"}
    config = resolve({"threads": 3, "engine": None}, env, toml)
    assert (config.threads, config.linger, config.window) == (3, 8.0, 3)
    assert (config.engine, config.resend_s) == ("onnx", 2.0)
    assert config.origins == {
        "threads": "command line", "linger": "environment", "window": str(toml),
        "engine": str(toml),
    }  # fmt: skip


def test_file_may_be_named_by_the_environment(toml):
    toml.write_text("window = 4\n")
    assert resolve({}, {"EDGE_KIT_CONFIG": str(toml)}).window == 4


def test_camera_flag_overrules_the_source_of_a_file(toml):
    toml.write_text('source = "photos"\ntarget_offload = 0.3\n')
    config = resolve({"camera": "auto", "threshold": 0.2}, {}, toml)
    assert config.source is None and config.target_offload is None
    assert "source" not in config.origins


def test_camera_may_be_true_a_number_or_a_device(toml):
    for text, camera in (
        ("true", "auto"),
        ("false", None),
        ("2", "2"),
        ('"/dev/video1"', "/dev/video1"),
    ):
        toml.write_text(f"camera = {text}\n")
        assert resolve({}, {}, toml).camera == camera


@pytest.mark.parametrize(
    ("text", "env", "sentence"),
    [
        ("treshold = 0.5", {}, "did you mean 'threshold'"),
        ("xyzzy = 1", {}, "unknown key 'xyzzy'.*known are bundle"),
        ("", {"EDGE_KIT_BROKR": "x"}, r"EDGE_KIT_BROKR.*did you mean 'broker'"),
        ("window = 0", {}, "window = 0 lies outside 1 to 20"),
        ("threads = 1.5", {}, "whole number"),
        ("threads = inf", {}, "threads = inf .* is not valid"),
        ("threshold = nan", {}, "threshold = nan lies outside"),
        ('source = "~no-such-user/photos"', {}, "no such user"),
        ("live = 3", {}, "true or false"),
        ("fps = true", {}, "must be a number"),
        ("broker = 5", {}, "must be text"),
        ("engine = 'tpu'", {}, "none of auto, onnx, tflite"),
        ("device_id = 'a/b'", {}, "device id 'a/b'"),
        ("broker = 'http://x'", {}, "not mqtt or mqtts"),
        ("password = 'x'", {}, "holds a password.*password_file"),
        ("", {"EDGE_KIT_THREADS": "many"}, "threads = 'many'.*environment"),
        ("= broken", {}, "cannot be read"),
    ],
)
def test_invalid_value_is_an_error_that_names_it(toml, text, env, sentence):
    toml.write_text(text + "\n")
    with pytest.raises(ConfigError, match=sentence) as caught:
        resolve({}, env, toml)
    assert caught.value.exit_code == 2


def test_missing_file_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ConfigError, match="no configuration file"):
        resolve({}, {}, tmp_path / "none.toml")


def test_password_comes_from_a_file_or_the_environment_and_is_never_shown(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hunter2\n")
    broker = {"broker": "mqtts://cam@host"}
    by_file = resolve(broker | {"password_file": secret}, {})
    by_env = resolve(broker, {"EDGE_KIT_PASSWORD": "hunter2"})
    for config in (by_file, by_env):
        assert config.address is not None and config.address.password == "hunter2"
        shown = "\n".join([*config.lines(), repr(config), repr(config.address)])
        assert "hunter2" not in shown
    assert "password = *** (environment)" in by_env.lines()
    with pytest.raises(ConfigError, match="cannot be read"):
        resolve(broker | {"password_file": tmp_path / "none"}, {})


def test_user_and_password_in_a_cameras_address_are_never_shown():
    address = "rtsp://admin:hunter2@cam/live"
    config = resolve({"camera": address}, {})
    assert config.camera == address
    assert config.lines() == ["camera = rtsp://***@cam/live (command line)"]


def test_user_without_a_home_may_still_run(monkeypatch):
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert resolve({"device_id": "cam"}, {}).spool == Path("/var/lib/edge-kit/cam/spool.db")


def test_spool_is_in_the_state_folder_of_the_service_or_the_user(monkeypatch):
    def spool(env) -> str:
        return str(resolve({"device_id": "cam"}, env).spool)

    assert spool({"STATE_DIRECTORY": "/var/lib/ek"}) == "/var/lib/ek/cam/spool.db"
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert spool({}) == "/home/x/.local/state/edge-kit/cam/spool.db"
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert spool({}) == "/s/edge-kit/cam/spool.db"


def test_device_id_defaults_to_the_host_name_with_valid_characters(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "pi zero/ü" + "x" * 100)
    config = resolve({}, {})
    assert config.device_id.startswith("pi-zero--x") and len(config.device_id) == 64
