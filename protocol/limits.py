"""What a request may hold: bytes of its frame, and values in it.

Bytes alone bound little: five bytes on the wire make a partition of a Fetch, which costs the daemon microseconds and
hundreds of bytes of memory. So a request is bounded in elements too. An element is one msgpack value of the frame: an
integer, a string, nil, and an array itself, whatever is in it. A daemon tells both bounds of each API key in ApiVersions;
a client sends more than one request where one would break them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final, TypeVar, cast

from protocol.messages.api import ApiKey

MAX_SMALL_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Largest request of any kind but Produce, JoinGroup, SyncGroup and those that commit or stage offsets."""

MAX_REQUEST_ELEMENTS: Final = 8_192
"""Most elements of a request, unless its kind has a bound of its own. Each step of serving so many takes 10 to 25 ms."""

_AROUND_LIST: Final = 7
"""Elements beside those of the only list of a request: the frame, four values in it, the body, the list."""

_Entry = TypeVar("_Entry")

_LARGE: Final = frozenset(
    {
        *(ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT, ApiKey.STAGE_OFFSETS),
        *(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP),
    }
)
"""What may be as large as a frame, because it carries byte strings."""

_ELEMENTS: Final = {
    ApiKey.PRODUCE: 16_384,
    ApiKey.FETCH: 16_384,
    ApiKey.LIST_OFFSETS: 16_384,
    ApiKey.DELETE_RECORDS: 16_384,
    ApiKey.REPLICA_FETCH: 16_384,
    ApiKey.SYNC_GROUP: 163_840,  # what a leader gives to 50,000 members (group_max_size)
    ApiKey.STAGE_OFFSETS: 65_536,  # of 10,000 partitions (max_pending_offsets): a batch is staged at once
    ApiKey.END_TXN: 16_384,  # the members of a transaction
    ApiKey.WRITE_TXN_MARKERS: 16_384,
    ApiKey.DESCRIBE_TRANSACTIONS: 4_096,
    ApiKey.DESCRIBE_GROUPS: 4_096,  # one element each
    ApiKey.DELETE_GROUPS: 4_096,
    ApiKey.DELETE_TOPICS: 4_096,
    ApiKey.DESCRIBE_LOG_DIRS: 4_096,
    ApiKey.DESCRIBE_CONFIGS: 2_048,  # a dozen settings each
}


def max_request_bytes(api_key: int, max_frame_bytes: int) -> int:
    """The largest payload of a request's frame, where no frame may be larger than ``max_frame_bytes``."""
    return max_frame_bytes if api_key in _LARGE else min(MAX_SMALL_REQUEST_BYTES, max_frame_bytes)


def max_request_elements(api_key: int) -> int:
    """Most elements that a request of this kind may have."""
    return _ELEMENTS.get(api_key, MAX_REQUEST_ELEMENTS)  # type: ignore[call-overload, no-any-return]


def cut(api_key: int, entries: Iterable[_Entry], elements: Callable[[_Entry], int]) -> Iterator[list[_Entry]]:
    """The only list of a request in pieces, in order, each of which a request of this kind may have.

    ``elements`` tells those of an entry. One that is too large comes alone.
    """
    most = max_request_elements(api_key) - _AROUND_LIST
    piece: list[_Entry] = []
    taken = 0
    for entry in entries:
        size = elements(entry)
        if piece and taken + size > most:
            yield piece
            piece, taken = [], 0
        piece.append(entry)
        taken += size
    if piece:
        yield piece


def least_elements(payload: bytes | bytearray, limit: int) -> int:
    """How many elements a msgpack value has, counted up to a little more than ``limit``; no object is made of them.

    An array counts with as many elements as its header announces, though they may not be there: a decoder sets memory aside
    for them. What is no msgpack is for the decoder to find.
    """
    count = count_elements(payload, limit, limit + 1)
    while True:
        try:
            next(count)
        except StopIteration as counted:
            return cast("int", counted.value)


def count_elements(payload: bytes | bytearray, limit: int, per_step: int) -> Generator[None, None, int]:
    """As ``least_elements``, about ``per_step`` elements in each step."""
    moves = _MOVES
    end = len(payload)
    position, count, announced = 0, 0, 0
    while position < end and count <= limit:
        if count:
            yield
        step_end = min(limit, count + per_step - 1)
        while position < end and count <= step_end:
            count += 1
            kind = payload[position]
            move = moves[kind]
            if move <= 0:
                size = int.from_bytes(payload[position + 1 : position + 1 - move])
                if kind in _LONG_ARRAYS:
                    announced += size
                    if announced > limit:
                        return announced
                    size = 0
                move = 1 - move + size
            position += move
    return count


_ARRAY_16: Final = 0xDC
_ARRAY_32: Final = 0xDD
_LONG_ARRAYS: Final = frozenset({_ARRAY_16, _ARRAY_32})


def _moves() -> tuple[int, ...]:
    """By the first byte of a msgpack value: bytes to the next one, or minus the bytes that tell its length."""
    moves = [1] * 256  # small integers, nil, booleans, short arrays
    moves[0xA0:0xC0] = range(1, 33)  # short strings
    moves[0xC4:0xC7] = moves[0xD9:0xDC] = (-1, -2, -4)  # bytes and strings
    moves[_ARRAY_16 : _ARRAY_32 + 1] = (-2, -4)
    moves[0xCA:0xCC] = (5, 9)  # floats
    moves[0xCC:0xD0] = moves[0xD0:0xD4] = (2, 3, 5, 9)  # integers
    return tuple(moves)


_MOVES: Final = _moves()
