from __future__ import annotations

import pytest

from edge_kit.delivery.refusals import PATIENCE_S, TRIES, Refusals
from edge_kit.delivery.window import InFlight
from edge_kit.wire import Refusal


def sample() -> InFlight:
    return InFlight(b"sample-a", 0.0)


def unknown(refusals: Refusals, record: InFlight | None, now: float = 0.0) -> bool:
    return refusals.is_final(record, Refusal.UNKNOWN_MODEL, now)


@pytest.mark.parametrize("refusal", [r for r in Refusal if r is not Refusal.UNKNOWN_MODEL])
def test_refusal_about_the_message_is_final_at_once(refusal):
    assert Refusals().is_final(sample(), refusal, 0.0)


def test_unknown_model_is_final_the_third_time():
    refusals, one = Refusals(), sample()
    assert [unknown(refusals, one) for _ in range(TRIES)] == [False, False, True]
    assert not unknown(refusals, sample())


def test_unknown_model_is_not_final_for_a_sample_that_an_earlier_run_sent():
    refusals = Refusals()
    assert not any(unknown(refusals, None) for _ in range(10 * TRIES))


def test_unknown_model_is_not_final_while_a_worker_answers():
    refusals, one = Refusals(), sample()
    refusals.answered(0.0)
    assert not any(unknown(refusals, one, PATIENCE_S - 1) for _ in range(10 * TRIES))
    assert [unknown(refusals, one, PATIENCE_S) for _ in range(TRIES)] == [False, False, True]


def test_first_unknown_model_is_final_after_three_given_up_until_one_is_answered():
    refusals = Refusals()
    for _ in range(TRIES):
        one = sample()
        for _ in range(TRIES):
            unknown(refusals, one)
    assert unknown(refusals, sample())
    refusals.answered(1.0)
    later = sample()
    assert not unknown(refusals, later, 1.0)
    assert not unknown(refusals, later, 2 + PATIENCE_S)
