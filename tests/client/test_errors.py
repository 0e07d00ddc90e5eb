"""One exception a code, found by it and importable by its name."""

from __future__ import annotations

import pytest

import client
from client.errors import ProtocolResponseError, UnknownServerError, error_for
from protocol.errors import RETRIABLE, ErrorCode

FAILURES = [code for code in ErrorCode if code != ErrorCode.NONE]


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
def test_every_code_has_a_class_of_its_own_that_users_can_import(code: ErrorCode) -> None:
    error = error_for(code, "why")
    assert error.code == code
    assert str(error) == f"{code.name}: why"
    assert error.retriable == (code in RETRIABLE)
    assert getattr(client, type(error).__name__) is type(error)


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
def test_an_error_without_a_text_explains_itself(code: ErrorCode) -> None:
    text = str(error_for(code))
    assert text.startswith(f"{code.name}: ")
    assert text.endswith((".", "(KIP-345).", "(KIP-394)."))


def test_a_code_from_the_future_is_told_by_its_number() -> None:
    error = error_for(4711, "new")
    assert type(error) is UnknownServerError
    assert "4711" in str(error)
    assert "new" in str(error)


def test_a_call_about_one_thing_has_no_map_of_failures() -> None:
    assert ProtocolResponseError("x").failures == {}


ABORTABLE = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.TRANSACTION_ABORTABLE,
}  # fmt: skip


@pytest.mark.parametrize("code", FAILURES, ids=lambda code: code.name)
def test_an_error_of_a_transaction_is_retriable_or_abortable_or_fatal(code: ErrorCode) -> None:
    error = error_for(code)
    assert error.abortable == (code in ABORTABLE)
    assert not (error.retriable and error.abortable)


def test_errors_of_transactions_say_whether_to_do_it_again() -> None:
    assert client.TransactionAbortedError("x").abortable
    assert client.CommitFailedError("x").abortable
    for error in (
        client.TransactionUncertainError("x"),
        client.AlreadyCommittedError("x", 3, 4),
        client.ClosedError("x"),
    ):
        assert not error.abortable
        assert not error.retriable
    done = client.AlreadyCommittedError("x", 3, 4)
    assert (done.version, done.committed_version) == (3, 4)
    assert not error_for(ErrorCode.PRODUCER_FENCED).abortable
