"""What a message of Kafka's wire protocol is made of: fields, each with a type and the versions that have it.

The modules in ``messages`` are made from Kafka's own schemas (``schemas/*.json``) and say them in these words, of which
``decoding`` and ``encoding`` compile functions. Versions are in Kafka's notation: ``"3"``, ``"0-12"``, ``"13+"``,
``"none"``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple, TypeAlias

LATEST: Final = 32767
"""The last version there can be: versions are int16. As ``FLEXIBLE_FROM`` it says that no version is flexible."""


class Primitive(Enum):
    """A type with no fields of its own. The value is its format for ``struct``, or its name where its length varies."""

    BOOL = "?"
    INT8 = "b"
    INT16 = "h"
    INT32 = "i"
    INT64 = "q"
    UUID = "16s"
    STRING = "string"
    BYTES = "bytes"
    RECORDS = "records"


BOOL: Final = Primitive.BOOL
INT8: Final = Primitive.INT8
INT16: Final = Primitive.INT16
INT32: Final = Primitive.INT32
INT64: Final = Primitive.INT64
UUID: Final = Primitive.UUID
STRING: Final = Primitive.STRING
BYTES: Final = Primitive.BYTES
RECORDS: Final = Primitive.RECORDS


class Structure:
    """A dataclass whose fields, in the order of ``FIELDS``, travel one behind the other."""

    __slots__ = ()

    FIELDS: ClassVar[tuple[Field, ...]] = ()


class Message(Structure):
    """A structure that is a whole request, response, or blob of the consumer protocol."""

    __slots__ = ()

    API_KEY: ClassVar[int] = -1
    """-1: not a request and not a response."""
    VERSIONS: ClassVar[tuple[int, int]] = (0, 0)
    """The first and the last version that the schema describes."""
    FLEXIBLE_FROM: ClassVar[int] = LATEST
    """The first version with compact lengths and tagged fields (KIP-482)."""


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of one type."""

    item: Primitive | type[Structure]


Type: TypeAlias = Primitive | Array | type[Structure]


class Field(NamedTuple):
    """A field of a structure, as the schema has it but for the name, which is in snake case."""

    name: str
    type: Type
    versions: str
    """Those that have the field; in others it has its default."""
    nullable: str = "none"
    """The versions in which it may be null."""
    tagged: str = "none"
    """The versions in which it is a tagged field: sent only where it is not its default."""
    tag: int = -1
    ignorable: bool = False
    """Whether a version without the field may silently drop what was set (else encoding it is refused)."""
    flexible: bool = True
    """False: its length has the old form also in flexible versions."""


def covers(versions: str, version: int) -> bool:
    """Whether ``version`` is one of ``versions``, given in Kafka's notation."""
    if versions == "none":
        return False
    if versions.endswith("+"):
        return version >= int(versions[:-1])
    first, _, last = versions.partition("-")
    return int(first) <= version <= int(last or first)
