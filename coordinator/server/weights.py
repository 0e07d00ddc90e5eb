"""What a request may cost, as its bytes tell: whether it is light, heavy, or so large that even decoding it takes turns.

Nothing is decoded for it, for that is what may take long. See ``FairQueue`` for weights.
"""

from __future__ import annotations

from typing import Final

from protocol.limits import least_elements
from protocol.messages import ApiKey

LIGHT_BYTES: Final = 256
"""A request of so many bytes has the weight 1, as a heartbeat or the commit of some partitions."""
_BYTES_PER_WEIGHT: Final = 128
"""Beyond that, of the values that a request may be made of: some 10 partitions of a commit."""
_SMALL_BLOB_BYTES: Final = 4096
_SMALL_BLOB_BYTES_PER_WEIGHT: Final = 512
_BLOB_BYTES_PER_WEIGHT: Final = 16 * 1024
"""The same of larger requests that carry byte strings; what else they are made of is counted when it is decoded."""
_ELEMENTS_PER_WEIGHT: Final = 16
_COUNTED_ELEMENTS: Final = 4096

_RECORDS: Final = bytes((0x95, ApiKey.PRODUCE))
_BLOBS: Final = tuple(bytes((0x95, key)) for key in (ApiKey.PRODUCE, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP))
"""How those begin that carry byte strings: an array of five, and their API key."""

_DECODED_AT_ONCE_BYTES: Final = 64 * 1024
"""A larger request is unpacked in one turn, decoded in another, and handled in a third, unless it is mostly records."""


def weight_of(payload: bytes | bytearray) -> int:
    """What a request may cost, as its bytes tell: see ``FairQueue``."""
    size = len(payload)
    if size <= LIGHT_BYTES:
        return 1
    if payload[:2] not in _BLOBS:
        return 1 + (size - LIGHT_BYTES) // _BYTES_PER_WEIGHT
    return 1 + min(size, _SMALL_BLOB_BYTES) // _SMALL_BLOB_BYTES_PER_WEIGHT + size // _BLOB_BYTES_PER_WEIGHT


def takes_turns(payload: bytes | bytearray) -> bool:
    """Whether a request is decoded in turns of its own, before the one it is handled in."""
    return len(payload) > _DECODED_AT_ONCE_BYTES and payload[:2] != _RECORDS


def weight_of_elements(payload: bytes | bytearray) -> int:
    """What a request that carries byte strings weighs beside them."""
    if len(payload) <= _SMALL_BLOB_BYTES or payload[:2] not in _BLOBS:
        return 0
    return least_elements(payload, _COUNTED_ELEMENTS) // _ELEMENTS_PER_WEIGHT
