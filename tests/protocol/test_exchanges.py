"""Requests under way without a socket: each answer for the one that waits, in any order and in pieces of any size."""

from __future__ import annotations

import pytest

from protocol.codec import encode_message
from protocol.errors import ErrorCode, ProtocolError
from protocol.exchanges import Exchanges, Refusal
from protocol.framing import encode_refusal, encode_response
from protocol.messages.api import Response
from protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse

ASK = ApiVersionsRequest("test")


def answer(correlation_id: int, name: str) -> bytes:
    return encode_response(correlation_id, encode_message(ApiVersionsResponse(0, (), name)))


def receive(exchanges: Exchanges[str], data: bytes) -> list[tuple[str, Response | Refusal]]:
    exchanges.space()[: len(data)] = data
    return list(exchanges.received(len(data)))


def test_answers_find_those_that_wait_in_any_order_and_pieces() -> None:
    exchanges: Exchanges[str] = Exchanges("c")
    ids = [exchanges.begin(ASK, waiter)[0] for waiter in "abc"]
    data = b"".join(answer(ids[place], name) for place, name in ((2, "third"), (0, "first"), (1, "second")))
    found = [pair for byte in data for pair in receive(exchanges, bytes((byte,)))]
    assert [
        (waiter, outcome.software_name) for waiter, outcome in found if isinstance(outcome, ApiVersionsResponse)
    ] == [
        ("c", "third"),
        ("a", "first"),
        ("b", "second"),
    ]
    assert len(exchanges) == 0


def test_an_answer_that_is_not_wanted_any_more_is_dropped() -> None:
    exchanges: Exchanges[str] = Exchanges("c")
    first, second = (exchanges.begin(ASK, waiter)[0] for waiter in "ab")
    exchanges.forget(first)
    assert [waiter for waiter, _ in receive(exchanges, answer(first, "") + answer(second, "") + answer(99, ""))] == [
        "b"
    ]


def test_a_refusal_answers_too() -> None:
    exchanges: Exchanges[str] = Exchanges("c")
    number, _ = exchanges.begin(ASK, "a")
    found = receive(exchanges, encode_refusal(number, ErrorCode.UNSUPPORTED_VERSION, "too new"))
    assert found == [("a", Refusal(ErrorCode.UNSUPPORTED_VERSION, "too new"))]


def test_who_waits_for_an_answer_that_does_not_parse_is_among_those_that_are_abandoned() -> None:
    exchanges: Exchanges[str] = Exchanges("c")
    number, _ = exchanges.begin(ASK, "a")
    with pytest.raises(ProtocolError, match="error_code"):
        receive(exchanges, encode_response(number, ["no number"]))
    assert exchanges.abandon() == ["a"]
    assert exchanges.abandon() == []


def test_a_request_that_cannot_be_encoded_is_not_under_way() -> None:
    exchanges: Exchanges[str] = Exchanges("c")
    with pytest.raises(TypeError):
        exchanges.begin(ApiVersionsRequest(object()), "a")  # type: ignore[arg-type]
    assert len(exchanges) == 0
