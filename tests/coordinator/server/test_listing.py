"""A list of groups is packed in steps, and is the same as if it were packed at once."""

from __future__ import annotations

import pytest

from coordinator.server.handlers.group_administration import _LISTED_PER_STEP, _LISTED_WELL, _packed
from protocol.codec import decode_message, unpack
from protocol.errors import ErrorCode
from protocol.messages.groups import ListedGroup, ListGroupsResponse


@pytest.mark.parametrize("size", [0, 1, _LISTED_PER_STEP, _LISTED_PER_STEP + 1, 3 * _LISTED_PER_STEP])
def test_a_list_that_is_packed_in_steps_is_what_a_client_reads(size: int) -> None:
    listed = [ListedGroup(f"group-{number}", "consumer", "Stable") for number in range(size)]
    steps, waits = _packed(listed), 0
    packed = None
    while packed is None:
        try:
            next(steps)
            waits += 1
        except StopIteration as end:
            packed = end.value
    assert waits == max(0, -(-size // _LISTED_PER_STEP) - 1)
    answer = decode_message(ListGroupsResponse, unpack(_LISTED_WELL + packed))
    assert answer == ListGroupsResponse(ErrorCode.NONE, tuple(listed))
