"""Requests that a daemon would hang up on are refused by the client, which names the field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.errors import InvalidRequestError
from client.transport.request_limits import checked_frame
from protocol.codec import MAX_ARRAY_ITEMS, MAX_STRING_BYTES, decode_message, encode_message
from protocol.errors import ProtocolError
from protocol.framing import LENGTH_BYTES, decode_request, encode_request
from protocol.messages import Request
from protocol.messages.cluster import ApiVersionsRequest, FindCoordinatorRequest
from protocol.messages.groups import DescribeGroupsRequest, LeaveGroupRequest, LeavingMember
from protocol.messages.offsets import OffsetFetchRequest, OffsetFetchTopic

LONG = "x" * (MAX_STRING_BYTES + 1)
EURO = "\N{EURO SIGN}"  # three bytes of UTF-8

REFUSED: list[tuple[Request, str]] = [
    (FindCoordinatorRequest(LONG), "key"),
    (FindCoordinatorRequest(EURO * (MAX_STRING_BYTES // 3 + 1)), "key"),
    (FindCoordinatorRequest("half \ud800 pair"), "key"),
    (LeaveGroupRequest("g", (LeavingMember("m", None), LeavingMember("n", None, LONG))), "reason"),
    (OffsetFetchRequest("g", (OffsetFetchTopic("t", (0,)), OffsetFetchTopic(LONG, (0,)))), "name"),
    (OffsetFetchRequest("g", (OffsetFetchTopic("t", (0,) * (MAX_ARRAY_ITEMS + 1)),)), "partition_indexes"),
    (DescribeGroupsRequest(("g", LONG)), "groups"),
]


@pytest.mark.parametrize(("asked", "field"), REFUSED)
def test_the_error_names_request_and_field(asked: Request, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{type(asked).__name__} cannot be sent: its {field} ") as caught:
        checked_frame(asked, 1, "client")
    assert not caught.value.retriable
    assert len(str(caught.value)) < 500


def test_a_client_id_has_its_own_bound() -> None:
    checked_frame(ApiVersionsRequest(), 1, EURO * 1024)
    with pytest.raises(InvalidRequestError, match="its client_id has 1025 characters"):
        checked_frame(ApiVersionsRequest(), 1, "x" * 1025)


@given(st.integers(MAX_STRING_BYTES - 2, MAX_STRING_BYTES + 2), st.sampled_from(["x", "\u00e9", EURO, "\U0001f600"]))
def test_what_passes_is_what_a_daemon_reads(size: int, letter: str) -> None:
    text = letter * (size // len(letter.encode())) + "x" * (size % len(letter.encode()))
    asked = DescribeGroupsRequest(("g", text))
    try:
        frame = checked_frame(asked, 1, "client")
    except InvalidRequestError:
        with pytest.raises(ProtocolError):
            decode_request(encode_request(asked.api_key, 0, 1, "client", encode_message(asked))[LENGTH_BYTES:])
    else:
        assert decode_message(DescribeGroupsRequest, decode_request(frame[LENGTH_BYTES:]).body) == asked
