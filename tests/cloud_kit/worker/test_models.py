from __future__ import annotations

from cloud_kit.worker.models import open_models
from tests.support.messages import fake_tail


def test_bundle_named_twice_is_loaded_once(tiny_bundle, caplog):
    opened = []

    def open_tail(bundle, threads):
        opened.append(bundle.index)
        return fake_tail().engine

    models = open_models([tiny_bundle.root] * 2, 1, open_tail=open_tail)
    assert len(models.tails) == len(opened) == 1
    assert "another bundle here holds too" in caplog.text
