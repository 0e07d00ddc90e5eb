"""Where the long byte string of a message lies, so that it can be received to where it is used and copied nowhere else.

The answer to a fetch is a few small fields around megabytes of records. To unpack it as a whole copies these once more.
"""

from __future__ import annotations

from typing import Final, NamedTuple

BIN32: Final = 0xC6
_EMPTY: Final = b"\xc4\x00"
_FIXED: Final = {
    **dict.fromkeys((0xC0, 0xC2, 0xC3), 1),
    0xCA: 5,
    0xCB: 9,
    0xCC: 2,
    0xCD: 3,
    0xCE: 5,
    0xCF: 9,
    0xD0: 2,
    0xD1: 3,
    0xD2: 5,
    0xD3: 9,
    0xDC: 3,
    0xDD: 5,
}
"""The bytes that a value takes, or the header of an array, by its first byte."""
_COUNTED: Final = {0xC4: 1, 0xC5: 2, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""How many bytes of length follow the first byte of a string."""


class LongBytes(NamedTuple):
    """The first long byte string of a payload: where its marker stands, where its content begins, how long that is."""

    marker: int
    start: int
    length: int

    def without(self, payload_head: bytes | bytearray | memoryview, rest: bytes | bytearray | memoryview) -> bytes:
        """The payload with an empty byte string instead; ``rest`` is what comes after the content."""
        return b"".join((payload_head[: self.marker], _EMPTY, rest))


def long_bytes(head: bytes | bytearray | memoryview) -> LongBytes | None:
    """The first byte string with a length of four bytes, if it begins within ``head``, the beginning of a payload.

    None when there is none, or when ``head`` is nothing that a message may hold; what it is instead says ``unpack``.
    """
    position = 0
    while position + 5 <= len(head):
        first = head[position]
        if first == BIN32:
            return LongBytes(position, position + 5, int.from_bytes(head[position + 1 : position + 5], "big"))
        if first < 0x80 or 0x90 <= first < 0xA0 or first >= 0xE0:  # small integers; an array, whose items follow
            position += 1
        elif 0xA0 <= first < 0xC0:
            position += 1 + (first & 0x1F)
        elif first in _FIXED:
            position += _FIXED[first]
        elif first in _COUNTED:
            width = _COUNTED[first]
            position += 1 + width + int.from_bytes(head[position + 1 : position + 1 + width], "big")
        else:
            return None
    return None
