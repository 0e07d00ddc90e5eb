"""What ``on_error`` can be: pauses of ``Retry``, headers of dead letters, and what is refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client import DeadLetter, RecordDeserializationError, Retry
from client.consumer.error_policy import check_on_error, checked_policy, dead_letter_headers
from client.types.records import ConsumerRecord

RECORD = ConsumerRecord("orders", 3, 17, 1_700_000_000_000, b"k", b"v", (("trace", b"1"),))


@given(
    attempt=st.integers(1, 10_000),
    initial_ms=st.floats(0.1, 1_000),
    factor=st.floats(1, 10),
    maximum_ms=st.floats(1_000, 1e6),
    jitter=st.floats(0, 0.99),
    seed=st.integers(),
)
def test_pauses_grow_by_the_factor_up_to_the_maximum_give_or_take_the_jitter(
    attempt: int, initial_ms: float, factor: float, maximum_ms: float, jitter: float, seed: int
) -> None:
    retry = Retry(None, initial_ms, factor, maximum_ms, jitter)
    try:
        nominal_ms = min(maximum_ms, initial_ms * factor ** (attempt - 1))
    except OverflowError:
        nominal_ms = maximum_ms
    pause_ms = retry.pause_s(attempt, Random(seed)) * 1000
    assert nominal_ms * (1 - jitter) * 0.999 <= pause_ms <= nominal_ms * (1 + jitter) * 1.001
    assert pause_ms == retry.pause_s(attempt, Random(seed)) * 1000, "the same draws give the same pause"


def test_the_pauses_of_retry_as_it_is() -> None:
    pauses = [Retry(jitter=0).pause_s(attempt, Random(0)) for attempt in range(1, 12)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]
    assert [Retry(attempts=3).ended_by(attempt) for attempt in (1, 2, 3, 4)] == [False, False, True, True]
    assert not Retry().ended_by(10**9)


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0}, {"initial_ms": 0}, {"initial_ms": -1}, {"initial_ms": 10, "maximum_ms": 9}, {"factor": 0.5},
        {"jitter": 1}, {"jitter": -0.1}, {"then": "retry"}, {"then": None}, {"then": Retry()},
    ],
)  # fmt: skip
def test_a_retry_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Retry(**wrong)


@pytest.mark.parametrize("wrong", ["ignore", 3, True, ("raise",), object()])
def test_what_is_no_policy_is_refused_with_the_choice_there_is(wrong: object) -> None:
    with pytest.raises(ValueError, match="'raise', 'skip' or 'retry', a Retry or a DeadLetter"):
        checked_policy(wrong)
    with pytest.raises(ValueError, match="on_error is"):
        check_on_error(wrong)
    with pytest.raises(ValueError, match="goes to a topic"):
        DeadLetter("")


def test_what_is_one_is_taken() -> None:
    for policy in ("raise", "skip", "retry", Retry(), DeadLetter("dlq"), Retry(attempts=2, then=DeadLetter("dlq"))):
        assert checked_policy(policy) == policy
        check_on_error(policy)
    check_on_error(None)
    check_on_error(lambda record, error: "skip")


def test_a_dead_letter_tells_where_it_comes_from_and_why() -> None:
    headers = dict(dead_letter_headers(RECORD, KeyError("price"), 5, "billing"))
    assert headers == {
        "__cohort.errors.topic": b"orders",
        "__cohort.errors.partition": b"3",
        "__cohort.errors.offset": b"17",
        "__cohort.errors.timestamp": b"1700000000000",
        "__cohort.errors.group": b"billing",
        "__cohort.errors.attempts": b"5",
        "__cohort.errors.exception.class.name": b"builtins.KeyError",
        "__cohort.errors.exception.message": b"'price'",
    }
    alone = dict(dead_letter_headers(RECORD, ValueError("x" * 10_000 + "\ud800"), 1, None))
    assert "__cohort.errors.group" not in alone
    assert alone["__cohort.errors.exception.message"] == b"x" * 1_000
    assert dict(dead_letter_headers(RECORD, ValueError("\ud800"), 1, None))["__cohort.errors.exception.message"] == b"?"


def test_the_reason_of_a_record_that_a_deserializer_refused_is_the_deserializers_own() -> None:
    error = RecordDeserializationError("value_deserializer", "orders", 3, 17)
    error.__cause__ = ZeroDivisionError("no")
    headers = dict(dead_letter_headers(RECORD, error, 1, None))
    assert headers["__cohort.errors.exception.class.name"] == b"builtins.ZeroDivisionError"
