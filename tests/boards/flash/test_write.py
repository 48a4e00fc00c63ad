"""Writing and verifying, on cards in memory that can be pulled out or lie."""

from __future__ import annotations

import errno
import hashlib
import lzma
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boards.flash.bmap import BlockMap, Range, make_map, whole_map
from boards.flash.source import ImageSource, open_source
from boards.flash.write import HEAD, check_map, flash, pieces
from edge_kit.errors import ImageError
from tests.support.boards.memorycard import MemoryCard

SIZE = 9 << 20
DATA = random.Random(2).randbytes(SIZE)
OLD = b"\xee"


class Stages:
    """Remembers progress."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, stage: str, done: int, whole: int) -> None:
        self.calls.append((stage, done, whole))

    def last(self, stage: str) -> tuple[int, int]:
        return next((d, w) for s, d, w in reversed(self.calls) if s == stage)


def used_card(size=SIZE + 4096, **options) -> MemoryCard:
    card = MemoryCard(size, **options)
    card.data[:] = OLD * len(card.data)
    return card


@pytest.fixture(scope="module")
def raw(tmp_path_factory) -> ImageSource:
    file = tmp_path_factory.mktemp("flash") / "a.img"
    file.write_bytes(DATA)
    return open_source(file)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory) -> ImageSource:
    """Data in the first, the third and the seventh MiB; the rest are holes."""
    file = tmp_path_factory.mktemp("flash") / "s.img"
    with file.open("wb") as out:
        for mib in (0, 2, 6):
            out.seek(mib << 20)
            out.write(DATA[mib << 20 : (mib + 1) << 20])
        out.truncate(SIZE)
    return open_source(file)


def test_card_holds_the_image_and_its_end_is_cleared(raw):
    card, stages = used_card(SIZE + 2 * HEAD), Stages()
    done = flash(raw, whole_map(SIZE), card, stages)
    assert card.data[:SIZE] == DATA
    # There a GPT's second copy and the marks of RAID members lie; before it nothing changed.
    assert card.data[-HEAD:] == bytes(HEAD)
    assert card.data[SIZE:-HEAD] == OLD * HEAD
    assert (done.image_size, done.written, done.verified) == (SIZE, SIZE, SIZE)
    assert stages.last("writing") == stages.last("verifying") == (SIZE, SIZE)


def test_block_map_leaves_holes_unwritten(sparse):
    card = used_card()
    found = make_map(sparse.path)
    assert found.mapped == 3 << 20
    done = flash(sparse, found, card, Stages())
    assert (done.written, done.verified) == (3 << 20, 3 << 20)
    for mib in range(9):
        here = card.data[mib << 20 : (mib + 1) << 20]
        wanted = DATA[mib << 20 : (mib + 1) << 20] if mib in (0, 2, 6) else OLD * (1 << 20)
        assert here == wanted, mib


def test_packed_image_with_its_map_gives_the_same_card(sparse, tmp_path):
    packed = tmp_path / "s.img.xz"
    packed.write_bytes(lzma.compress(sparse.path.read_bytes(), preset=0))
    one, other = used_card(), used_card()
    flash(sparse, make_map(sparse.path), one, Stages())
    flash(open_source(packed), make_map(sparse.path), other, Stages())
    assert one.data == other.data


def test_partition_table_is_cleared_first_and_written_last(raw):
    card = used_card()
    flash(raw, whole_map(SIZE), card, Stages())
    assert card.writes[0] == (0, HEAD)
    assert card.writes[-1] == (0, HEAD)
    assert all(offset >= HEAD for offset, _ in card.writes[1:-1])


@given(st.data())
@settings(max_examples=40)
def test_pieces_cover_the_ranges(raw, data):
    marks = sorted(data.draw(st.sets(st.integers(0, SIZE // 512), max_size=10)))
    ranges = tuple(Range(a * 512, b * 512) for a, b in zip(marks[::2], marks[1::2], strict=False))
    found = bytearray(SIZE)
    total = 0
    for piece in pieces(raw, ranges):
        assert piece.data == DATA[piece.offset : piece.offset + len(piece.data)]
        found[piece.offset : piece.offset + len(piece.data)] = piece.data
        total += len(piece.data)
    assert total == sum(r.stop - r.start for r in ranges)
    for r in ranges:
        assert found[r.start : r.stop] == DATA[r.start : r.stop]


@pytest.mark.parametrize("after", [1, HEAD + 1, 5 << 20])
def test_card_pulled_out_while_writing_is_an_error(raw, after):
    card = used_card(pulled_after=after)
    with pytest.raises(ImageError, match=r"fails: writing it ended after .* of 9 MiB"):
        flash(raw, whole_map(SIZE), card, Stages())
    # An unfinished card has neither the old nor the new partition table.
    assert card.data[:512] == bytes(512)


def test_card_pulled_out_while_read_back_is_an_error(raw):
    class Pulled(MemoryCard):
        def drop_caches(self) -> None:
            self._pulled_after = 0

    with pytest.raises(ImageError, match="pulled out or fails: reading back it ended after 0 of 9"):
        flash(raw, whole_map(SIZE), Pulled(SIZE), Stages())


class Failing(MemoryCard):
    """Fails with one error when it is read."""

    code = errno.ENODEV

    def read(self, offset: int, length: int) -> bytes:
        raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize(
    ("code", "sentence"),
    [(errno.ENODEV, "pulled out or fails: reading back"), (errno.ENXIO, "pulled out"),
     (errno.ENOSPC, "smaller than it claims"), (errno.ETIMEDOUT, "reading back the card failed")],
)  # fmt: skip
def test_error_of_the_kernel_becomes_a_sentence(raw, code, sentence):
    card = Failing(SIZE)
    card.code = code
    with pytest.raises(ImageError, match=sentence) as caught:
        flash(raw, whole_map(SIZE), card, Stages())
    assert "flash it again" in caught.value.hint


def test_card_smaller_than_it_claims_is_noticed(raw):
    card = used_card(true_size=4 << 20)
    with pytest.raises(ImageError, match=r"other bytes .* smaller than it claims"):
        flash(raw, whole_map(SIZE), card, Stages())


@pytest.mark.parametrize("at", [0, HEAD, SIZE - 1])
def test_bit_that_is_not_kept_is_noticed(raw, at):
    class Worn(MemoryCard):
        def drop_caches(self) -> None:
            self.data[at] ^= 1

    with pytest.raises(ImageError, match="gives back other bytes"):
        flash(raw, whole_map(SIZE), Worn(SIZE), Stages())


@pytest.mark.parametrize("card_size", [SIZE, SIZE + 1, SIZE + 512, SIZE + HEAD - 1])
def test_clearing_the_end_keeps_the_image(raw, card_size):
    card = used_card(card_size)
    flash(raw, whole_map(SIZE), card, Stages())
    assert card.data == DATA + bytes(card_size - SIZE)


def right_range(start: int, stop: int) -> Range:
    return Range(start, stop, hashlib.sha256(DATA[start:stop]).hexdigest())


@pytest.mark.parametrize("packed", [False, True])
def test_map_of_another_image_is_noticed_before_writing(raw, tmp_path, packed):
    source = raw
    if packed:
        (tmp_path / "a.xz").write_bytes(lzma.compress(DATA, preset=0))
        source = open_source(tmp_path / "a.xz")
    for ranges in (
        (Range(0, 4096, "0" * 64), right_range(HEAD, SIZE)),
        (right_range(0, 4096), Range(HEAD, 4 << 20, "0" * 64)),
    ):
        card = used_card()
        with pytest.raises(ImageError, match="differs from its block map") as caught:
            flash(source, BlockMap(SIZE, 4096, ranges), card, Stages())
        assert "not usable" not in str(caught.value)
        assert card.writes == []


def test_image_that_differs_from_its_map_later_leaves_no_partition_table(raw, monkeypatch):
    monkeypatch.setattr("boards.flash.write._PREVIEW", HEAD)
    wrong = BlockMap(SIZE, 4096, (right_range(0, HEAD), Range(4 << 20, 5 << 20, "0" * 64)))
    card = used_card()
    with pytest.raises(ImageError, match=r"at byte 4,194,304.*card is not usable as it is; fetch"):
        flash(raw, wrong, card, Stages())
    assert card.data[:HEAD] == bytes(HEAD)


def test_size_mismatch_is_refused_before_writing(raw):
    card = used_card()
    with pytest.raises(ImageError, match="its block map is for an image of 5"):
        flash(raw, whole_map(5), card, Stages())
    with pytest.raises(ImageError, match="take a larger card"):
        check_map(raw, whole_map(SIZE), MemoryCard(SIZE - 1))
    assert card.writes == []
