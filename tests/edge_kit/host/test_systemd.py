from __future__ import annotations

import io
import socket

import pytest

from edge_kit.device.config import resolve
from edge_kit.device.output import JsonLines
from edge_kit.device.service import Service
from edge_kit.host.systemd import Notifier


@pytest.fixture
def systemd(tmp_path):
    """The socket that systemd would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.setblocking(False)
        yield listener


def told(listener: socket.socket) -> list[str]:
    messages = []
    while True:
        try:
            messages.append(listener.recv(4096).decode())
        except BlockingIOError:
            return messages


def test_first_frame_reports_ready_and_later_ones_feed_the_watchdog(systemd):
    now = [100.0]
    notifier = Notifier({"NOTIFY_SOCKET": systemd.getsockname()}, clock=lambda: now[0])
    assert told(systemd) == []
    notifier.frame()
    notifier.frame()  # too soon to say it again
    now[0] += 1.5
    notifier.frame()
    first, second = told(systemd)
    assert first.split("\n")[:2] == ["READY=1", "WATCHDOG=1"]
    assert second == "WATCHDOG=1"


def test_without_frames_the_watchdog_is_not_fed_and_stopping_is_reported(systemd):
    notifier = Notifier({"NOTIFY_SOCKET": systemd.getsockname()})
    notifier.stopping()
    assert [m.split("\n")[0] for m in told(systemd)] == ["STOPPING=1"]


def test_abstract_socket_gets_the_messages(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        name = f"edge-kit-test-{tmp_path.name}-{id(listener)}"
        listener.bind(f"\0{name}")
        listener.settimeout(30)
        Notifier({"NOTIFY_SOCKET": f"@{name}"}).frame()
        assert listener.recv(4096).startswith(b"READY=1")


def test_missing_or_dead_socket_raises_nothing(tmp_path, caplog):
    Notifier({}).frame()
    Notifier({}).stopping()
    assert not caplog.records
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "none")}).frame()
    assert "systemd cannot be told 'READY=1'" in caplog.text


def test_real_run_reports_ready_after_the_first_frame(
    systemd, tiny_bundle, photo_folder, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    flags = {"bundle": tiny_bundle.root, "source": photo_folder, "engine": "onnx"}
    config = resolve(flags, {"HOME": "/nowhere"})
    notifier = Notifier({"NOTIFY_SOCKET": systemd.getsockname()})
    service = Service(config, JsonLines(io.StringIO()), lambda _text: None, notifier)
    assert told(systemd) == []  # engine and camera are open, but no frame came yet
    service.run()
    messages = told(systemd)
    assert messages[0].startswith("READY=1") and messages[-1].startswith("STOPPING=1")
