"""Partial failure: one error that names all, and maps each item to its own."""

from __future__ import annotations

import pytest

from client.admin.failures import all_or_failures, raise_error_codes, raise_failures
from client.errors import CohortError, InvalidTopicError, NotControllerError, RequestTimedOutError
from protocol.errors import ErrorCode


def caught(failures: dict[str, CohortError]) -> CohortError:
    with pytest.raises(CohortError) as error:
        raise_failures(failures)
    return error.value


def test_no_failure_raises_nothing() -> None:
    raise_failures({})
    raise_error_codes([("a", ErrorCode.NONE, "")])


def test_the_error_is_of_the_first_class_names_all_and_maps_each() -> None:
    failures: dict[str, CohortError] = {"a": InvalidTopicError("a is bad"), "b": NotControllerError("b is elsewhere")}
    error = caught(failures)
    assert type(error) is InvalidTopicError
    assert str(error) == "a is bad; b is elsewhere"
    assert error.failures == failures
    assert error.__cause__ is failures["a"]


@pytest.mark.parametrize(
    ("failures", "retriable"),
    [
        ([RequestTimedOutError("a")], True),
        ([RequestTimedOutError("a"), NotControllerError("b")], True),
        ([RequestTimedOutError("a"), InvalidTopicError("b")], False),
        ([InvalidTopicError("a"), RequestTimedOutError("b")], False),
    ],
)
def test_it_is_retriable_when_each_failure_is(failures: list[CohortError], retriable: bool) -> None:
    assert caught({str(failure): failure for failure in failures}).retriable is retriable


def test_the_code_and_equal_texts_stand_once() -> None:
    with pytest.raises(InvalidTopicError) as error:
        raise_error_codes(
            (name, ErrorCode.INVALID_TOPIC_EXCEPTION, text) for name, text in [("a", "x"), ("b", "y"), ("c", "y")]
        )
    assert str(error.value) == "INVALID_TOPIC_EXCEPTION: x; y"
    assert list(error.value.failures) == ["a", "b", "c"]


def test_many_failures_have_a_bounded_text() -> None:
    text = str(caught({str(number): CohortError(f"item {number} failed") for number in range(1000)}))
    assert text.endswith("item 19 failed; and 980 more")


async def test_every_call_ends_before_the_error() -> None:
    done: list[str] = []

    async def call(name: str, error: Exception | None = None) -> str:
        if error is not None:
            raise error
        done.append(name)
        return name.upper()

    assert await all_or_failures({"a": call("a"), "b": call("b")}) == {"a": "A", "b": "B"}
    with pytest.raises(CohortError, match="c failed") as error:
        await all_or_failures({"c": call("c", CohortError("c failed")), "d": call("d")})
    assert done == ["a", "b", "d"]
    assert list(error.value.failures) == ["c"]
    with pytest.raises(ZeroDivisionError):  # a fault of ours is not dressed up
        await all_or_failures({"e": call("e", ZeroDivisionError())})
