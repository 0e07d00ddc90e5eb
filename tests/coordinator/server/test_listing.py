"""A list of groups is packed in steps, and is the same as if it were packed at once."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import pytest

from coordinator.server.handlers.list_groups import _LISTED_WELL
from coordinator.server.handlers.long_lists import _MERGED_PER_STEP, PACKED_PER_STEP, merged, packed
from protocol.codec import decode_message
from protocol.errors import ErrorCode
from protocol.framing import unpack
from protocol.messages.groups import ListedGroup, ListGroupsResponse

Made = TypeVar("Made")


def done(steps: Generator[None, None, Made]) -> tuple[Made, int]:
    """What all steps made, and how often others had their turn in between."""
    waits = 0
    while True:
        try:
            next(steps)
            waits += 1
        except StopIteration as end:
            return end.value, waits


@pytest.mark.parametrize("lists", [0, 1, 2, 7, 50])
def test_lists_that_are_in_order_become_one_in_steps(lists: int) -> None:
    names = [f"group-{number * 7919 % 100_003}" for number in range(lists * 1_000)]
    names_in_order, waits = done(merged([sorted(names[first::lists]) for first in range(lists)]))
    assert names_in_order == sorted(names)
    assert waits >= len(names) // _MERGED_PER_STEP - 1


@pytest.mark.parametrize("size", [0, 1, PACKED_PER_STEP, PACKED_PER_STEP + 1, 3 * PACKED_PER_STEP])
def test_a_list_that_is_packed_in_steps_is_what_a_client_reads(size: int) -> None:
    names = [f"group-{number}" for number in range(size)]
    listed = {name: ListedGroup(name, "consumer", "Stable") for name in names}
    entries, waits = done(packed(names, listed))
    assert waits == max(0, -(-size // PACKED_PER_STEP) - 1)
    answer = decode_message(ListGroupsResponse, unpack(_LISTED_WELL + entries))
    assert answer == ListGroupsResponse(ErrorCode.NONE, tuple(listed.values()))
