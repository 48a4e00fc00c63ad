"""A spool row that cannot be read must not stop the samples behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_kit.delivery.results import stored_result
from tests.support.rig import CLASSES, Rig, doubtful


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "spool.db")
    yield made
    made.spool.close()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"sample": "00", "label": 1}'])
def test_an_unreadable_line_costs_the_line_alone(rig, text):
    rig.connect()
    rig.box.submit([doubtful(), doubtful(1)])
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


def test_the_messages_header_tells_what_it_knows(rig):
    rig.box.submit([doubtful()])
    ((payload,),) = rig.spool._file._db.execute("SELECT payload FROM sample")
    known = rig.out[0]
    found = stored_result(bytes(8), "{", payload, CLASSES)
    assert (found.label, found.class_name) == (known.label, known.class_name)
    assert found.entropy == pytest.approx(known.entropy)
    assert found.captured_at == pytest.approx(doubtful().header.captured_at / 1e6)


def test_nothing_readable_at_all_is_still_a_result():
    assert stored_result(b"12345678", "{", b"junk", CLASSES).class_name == "unknown"
