"""A spool row that cannot be read must not stop the samples behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_kit.delivery.results import stored_result
from tests.support.rig import Rig, low_confidence


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "spool.db")
    yield made
    made.spool.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"sample": "00", "label": 1}'])
def test_unreadable_line_does_not_stop_the_samples_behind_it(rig, text):
    rig.connect()
    rig.box.submit([low_confidence(), low_confidence(1)])
    messages = rig.received()
    rig.box.flush()
    rig.spool._file._db.execute("UPDATE sample SET provisional = ?", (text,))
    rig.out.clear()
    for message in messages:
        rig.answer(message)
    rig.later(1.1)
    assert [(r.tier, r.status, r.label) for r in rig.out] == [("cloud", "final", 2)] * 2
    assert [r.sample for r in rig.out] == [m.header.sample.hex() for m in messages]
    assert rig.spool.counters()["answered"] == 2 and len(rig.spool) == 0


def test_unreadable_line_gives_an_unknown_answer():
    found = stored_result(b"12345678", "{", 600, 1_800_000_000.0)
    assert (found.class_name, found.status, found.bytes_sent) == ("unknown", "provisional", 600)
    assert found.sample == b"12345678".hex() and found.captured_at == 1_800_000_000.0
