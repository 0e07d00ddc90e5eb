"""Sets of small integers as the bits of one integer: union and intersection of ten thousand at the speed of a copy."""

from __future__ import annotations

from collections.abc import Iterable


def mask_of(numbers: Iterable[int], size: int) -> int:
    """The mask with the bits ``numbers`` set, all below ``size``."""
    digits = bytearray(b"0") * size
    for number in numbers:
        digits[number] = 49  # the character "1"
    digits.reverse()
    return int(digits, 2) if size else 0


def numbers_in(mask: int) -> list[int]:
    """The numbers of the set bits, ascending."""
    digits = bin(mask)[:1:-1]
    numbers: list[int] = []
    number = digits.find("1")
    while number >= 0:
        numbers.append(number)
        number = digits.find("1", number + 1)
    return numbers


def lowest_in(mask: int) -> int:
    """The number of the lowest set bit; -1 for an empty mask."""
    return (mask & -mask).bit_length() - 1
