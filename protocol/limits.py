"""What a request may hold: bytes of its frame, and values in it.

Bytes alone bound little: five bytes on the wire make a partition of a Fetch, which costs the daemon microseconds and
hundreds of bytes of memory. So a request is bounded in elements too. An element is one msgpack value of the frame: an
integer, a string, nil, and an array itself, whatever is in it. A daemon tells both bounds of each API key in ApiVersions;
a client sends more than one request where one would break them.
"""

from __future__ import annotations

from typing import Final

from protocol.messages.api import ApiKey

MAX_SMALL_REQUEST_BYTES: Final = 4 * 1024 * 1024
"""Largest request of any kind but Produce, OffsetCommit, JoinGroup and SyncGroup."""

MAX_REQUEST_ELEMENTS: Final = 32_768
"""Most elements of a request: 5,457 partitions of a Fetch. Decoding so many takes 10 to 20 ms."""

_LARGE: Final = frozenset({ApiKey.PRODUCE, ApiKey.OFFSET_COMMIT, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""What may be as large as a frame, because it carries byte strings."""

_ELEMENTS: Final = {
    ApiKey.OFFSET_COMMIT: 16_384,  # decided as one: 3,272 partitions
    ApiKey.SYNC_GROUP: 163_840,  # what a leader gives to 50,000 members (group_max_size)
}


def max_request_bytes(api_key: int, max_frame_bytes: int) -> int:
    """The largest payload of a request's frame, where no frame may be larger than ``max_frame_bytes``."""
    return max_frame_bytes if api_key in _LARGE else min(MAX_SMALL_REQUEST_BYTES, max_frame_bytes)


def max_request_elements(api_key: int) -> int:
    """Most elements that a request of this kind may have."""
    return _ELEMENTS.get(api_key, MAX_REQUEST_ELEMENTS)  # type: ignore[call-overload, no-any-return]
