from __future__ import annotations

import pytest

from edge_kit.delivery.refusals import PATIENCE_S, TRIES, Refusals
from edge_kit.wire import Refusal

A, B = b"sample-a", b"sample-b"


@pytest.mark.parametrize("refusal", [r for r in Refusal if r is not Refusal.UNKNOWN_MODEL])
def test_what_is_said_of_the_message_is_final(refusal):
    assert Refusals().is_final(A, refusal, 0.0)


def unknown(refusals: Refusals, sample: bytes, now: float = 0.0) -> bool:
    return refusals.is_final(sample, Refusal.UNKNOWN_MODEL, now)


def test_an_unknown_model_is_final_the_third_time():
    refusals = Refusals()
    assert [unknown(refusals, A) for _ in range(TRIES)] == [False, False, True]
    assert not unknown(refusals, B)


def test_an_unknown_model_is_never_final_while_somebody_answers():
    refusals = Refusals()
    refusals.answered(0.0)
    assert not any(unknown(refusals, A, PATIENCE_S - 1) for _ in range(10 * TRIES))
    assert [unknown(refusals, A, PATIENCE_S) for _ in range(TRIES)] == [False, False, True]


def test_the_first_is_final_once_that_was_said_of_several_samples_until_one_is_answered():
    refusals = Refusals()
    for number in range(TRIES):
        for _ in range(TRIES):
            unknown(refusals, bytes([number]))
    assert unknown(refusals, A)
    refusals.answered(1.0)
    assert not unknown(refusals, B, 1.0)
    assert not unknown(refusals, B, 2 + PATIENCE_S)


def test_samples_that_are_done_are_not_remembered():
    refusals = Refusals()
    unknown(refusals, A)
    unknown(refusals, B)
    refusals.forget(A)
    refusals.forget(b"never seen")
    assert len(refusals) == 1
