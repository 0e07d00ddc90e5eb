"""Kafka's varints: signed numbers, zigzag-coded, seven bits a byte, the lowest first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchError

VARINT_BYTES: Final = 5
"""The longest of an int32."""
VARLONG_BYTES: Final = 10
"""The longest of an int64."""
INT32: Final = range(-(2**31), 2**31)
INT64: Final = range(-(2**63), 2**63)
_REMEMBERED: Final = 65_536


def varint(data: bytes, position: int, most: int = VARINT_BYTES) -> tuple[int, int]:
    """The number at ``position``, of ``most`` bytes at most, and the position behind it.

    Raises ``IndexError`` at the end of the data, ``KafkaBatchError`` (INVALID_RECORD) for a number that is longer or larger.
    """
    number = shift = 0
    for place in range(position, position + most):
        byte = data[place]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            number = (number >> 1) ^ -(number & 1)
            if number not in (INT32 if most == VARINT_BYTES else INT64):
                break
            return number, place + 1
        shift += 7
    raise KafkaBatchError(ErrorCode.INVALID_RECORD, f"the varint at byte {position} of the records is too large")


def short_varint(data: bytes, position: int) -> tuple[int, int]:
    """As ``varint``, quicker for one byte that is not negative: most are."""
    number = data[position]
    if number > 0x7F or number & 1:
        return varint(data, position)
    return number >> 1, position + 1


def packed_varint(number: int) -> bytes:
    """The bytes of an int64. Raises ``ValueError`` for a number that is none."""
    if number not in INT64:
        raise ValueError(f"{number} is no int64")
    rest = (number << 1) ^ (number >> 63)
    packed = bytearray()
    while rest > 0x7F:
        packed.append(rest & 0x7F | 0x80)
        rest >>= 7
    packed.append(rest)
    return bytes(packed)


class _Packed(dict[int, bytes]):
    """The varints that were asked for, up to some number of them: lengths and deltas of records are few and come again."""

    def __missing__(self, number: int) -> bytes:
        packed = packed_varint(number)
        if len(self) < _REMEMBERED:
            self[number] = packed
        return packed


_PACKED: Final = _Packed()


def packed_varints(numbers: Iterable[int]) -> Iterable[bytes]:
    """The bytes of each number. Raises ``ValueError``, while they are taken, for one that is no int64."""
    return map(_PACKED.__getitem__, numbers)
