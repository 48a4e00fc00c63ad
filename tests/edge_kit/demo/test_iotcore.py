"""The demo with the broker that pip installs, for machines without mosquitto."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from edge_kit.demo import DemoConfig, run_demo, show
from edge_kit.host.child_process import module_command

ASSETS = Path(show.__file__).parent / "assets"


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="iotcore has wheels for x86-64 alone")
def test_demo_over_iotcore_answers_all_200_photos(monkeypatch):
    def with_iotcore(module: str, *arguments: str) -> list[str]:
        kind = ("--kind", "iotcore") if arguments[:1] == ("broker",) else ()
        return module_command(module, *arguments, *kind)

    monkeypatch.setattr(show, "module_command", with_iotcore)
    # The figures are those of one engine; which one is faster depends on the load of the machine.
    config = DemoConfig(ASSETS / "clothing.ekb", ASSETS / "photos", fps=50, engine="onnx")
    found = run_demo(config).to_json()
    assert found["broker"] == "iotcore"
    assert (found["photos"], found["lost"], found["duplicates"]) == (200, 0, 0)
    assert found["device_share"] == 0.795
    assert found["accuracy"] == {"device": 0.92, "cloud": 0.925, "hybrid": 0.925}
    assert found["bytes_per_offloaded"] == 626.0
