"""What a device wrote becomes a round trip, and which settings it inherits."""

from __future__ import annotations

import pytest

from edge_kit.bench.measure.roundtrip import device_environment, device_name, summarize
from edge_kit.wire import Topics


def test_summarize_counts_messages_and_times():
    lines = [
        {"status": "provisional", "tier": "device", "bytes_sent": 100, "round_trip_ms": None},
        {"status": "provisional", "tier": "device", "bytes_sent": 200, "round_trip_ms": None},
        {"status": "final", "tier": "cloud", "bytes_sent": 100, "round_trip_ms": 12.0},
        {"summary": {}},
    ]
    found = summarize(lines, "mqtt://b", "onnx", 2)
    assert (found.sent, found.answered, found.bytes_mean) == (2, 1, 150.0)
    assert found.round_trip.p50 == pytest.approx(12.0)
    assert summarize([], "mqtt://b", "onnx", 2).round_trip is None


def test_device_inherits_only_credentials():
    env = {"EDGE_KIT_SOURCE": "x", "EDGE_KIT_PASSWORD": "p", "EDGE_KIT_TLS_CA": "c", "PATH": "/"}
    assert set(device_environment(env)) == {"EDGE_KIT_PASSWORD", "EDGE_KIT_TLS_CA", "PATH"}


def test_device_name_is_valid_in_a_topic(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "Küche (2)." + "x" * 80)
    assert Topics(device_name()).device.startswith("bench-K-che--2-.")
