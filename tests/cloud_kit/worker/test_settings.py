from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloud_kit.worker.settings import ServiceSettings, find_password
from cloud_kit.worker.worker import WorkerSettings
from edge_kit.errors import ConfigError
from edge_kit.link.mqtt import BrokerAddress

ADDRESS = BrokerAddress.parse("mqtt://worker@broker.example", password="hidden")


def test_settings_are_shown_without_the_password():
    settings = ServiceSettings((Path("a"),), ADDRESS)
    assert "hidden" not in json.dumps(settings.to_json())
    assert "hidden" not in repr(settings)
    assert settings.to_json()["password"] == "***"


@pytest.mark.parametrize(("lanes", "most"), [(1, 48), (2, 72)])
def test_receive_maximum_is_a_batch_a_lane_and_one_more(lanes, most):
    work = WorkerSettings(batch=24, lanes=lanes)
    assert ServiceSettings((Path("a"),), ADDRESS, work=work).receive_maximum == most


def test_client_ids_differ_and_carry_the_name():
    settings = ServiceSettings((Path("a"),), ADDRESS, name="ward 3/left")
    first, second = settings.new_client_id(), settings.new_client_id()
    assert first != second
    assert first.startswith("ward-3-left-")


@pytest.mark.parametrize(
    ("changes", "said"), [({"bundles": ()}, "--bundle"), ({"pool": "a/b"}, "pool")]
)
def test_missing_bundle_or_bad_pool_is_refused_by_name(changes, said):
    with pytest.raises(ConfigError, match=said):
        ServiceSettings(**({"bundles": (Path("a"),), "broker": ADDRESS} | changes))


def test_password_comes_from_a_file_or_the_environment(tmp_path):
    file = tmp_path / "password"
    file.write_text("from file\n")
    assert find_password(file, {"CLOUD_KIT_PASSWORD": "other"}) == "from file"
    assert find_password(None, {"CLOUD_KIT_PASSWORD": "other"}) == "other"
    assert find_password(None, {}) == ""
    with pytest.raises(ConfigError, match="cannot be read"):
        find_password(tmp_path / "missing", {})
    file.write_text("\n")
    with pytest.raises(ConfigError, match="empty"):
        find_password(file, {})
