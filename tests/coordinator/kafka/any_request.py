"""Requests of every kind and version with values that a client could send, though none would."""

from __future__ import annotations

import random
from typing import Any, Final, TypeVar

from protocol.kafka.batch import KafkaBatchHeader
from protocol.kafka.schema import Array, Field, Primitive, Structure, covers

NAMES: Final = (
    "t",
    "t",
    "u",
    "",
    "a b",
    "g",
    "__consumer_offsets",
    "range",
    "x" * 300,
    "ümlaut",
    "cleanup.policy",
    "compact",
)
_NUMBERS: Final = (-5, -3, -2, -1, -1, 0, 0, 0, 0, 0, 1, 1, 2, 3, 5, 100)
_WIDTHS: Final = {Primitive.INT8: 7, Primitive.INT16: 15, Primitive.INT32: 31, Primitive.INT64: 63}
_MAX_ITEMS: Final = 3
BATCH: Final = KafkaBatchHeader(0, 0, 0, 0, 0, 0, 0, 0, -1, -1, -1, 1).with_records(b"\x10\0\0\0\x01\x04ab\0")
"""One record."""

StructureT = TypeVar("StructureT", bound=Structure)


def any_structure(kind: type[StructureT], version: int, draw: random.Random) -> StructureT:
    """A structure with any values, of those that the version can say."""
    fields = {field.name: _any_value(field, version, draw) for field in kind.FIELDS if covers(field.versions, version)}
    return kind(**fields)


def _any_value(field: Field, version: int, draw: random.Random) -> Any:
    if covers(field.nullable, version) and draw.random() < 0.1:
        return None
    if isinstance(field.type, Array):
        count = draw.randrange(_MAX_ITEMS + 1)
        return [_any_of(field.type.item, version, draw) for _ in range(count)]
    return _any_of(field.type, version, draw)


def _any_of(kind: Primitive | type[Structure], version: int, draw: random.Random) -> Any:
    if not isinstance(kind, Primitive):
        return any_structure(kind, version, draw)
    if kind in _WIDTHS:
        largest = 2 ** _WIDTHS[kind] - 1
        return draw.choice((*_NUMBERS, *_NUMBERS, *_NUMBERS, largest, -largest - 1, draw.randint(-largest, largest)))
    if kind is Primitive.STRING:
        return draw.choice(NAMES)
    if kind is Primitive.BOOL:
        return draw.random() < 0.5
    if kind is Primitive.UUID:
        return draw.choice((bytes(16), draw.randbytes(16)))
    if kind is Primitive.RECORDS and draw.random() < 0.5:
        return draw.choice((BATCH, BATCH, damaged(BATCH, draw)))
    return draw.choice((b"", b"\0\0", draw.randbytes(draw.randrange(80))))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """The bytes with some of them changed, cut off, or doubled."""
    changed = bytearray(data)
    for _ in range(draw.choice((0, 1, 1, 2, 8))):
        if changed:
            changed[draw.randrange(len(changed))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
    if draw.random() < 0.3:
        del changed[draw.randrange(len(changed) + 1) :]
    if draw.random() < 0.1:
        changed += draw.randbytes(draw.randrange(20))
    return bytes(changed)
