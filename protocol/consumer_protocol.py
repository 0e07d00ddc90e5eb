"""Kafka's bytes for what consumers tell each other through their group: subscriptions and assignments.

Their source is ``ConsumerProtocolSubscription.json`` and ``ConsumerProtocolAssignment.json`` of Apache Kafka, versions 0
to 3 (KIP-429 added the partitions owned, KIP-792 the generation, KIP-881 the rack). Big-endian; a string has its length as
int16, an array its count and bytes their length as int32, -1 for null::

    subscription  version int16, topics [string], user data bytes?, owned [topic string, partitions [int32]],
                  generation int32, rack string?
    assignment    version int16, partitions [topic string, partitions [int32]], user data bytes?

No version takes fields away, so a newer one is read as the newest that is known. A subscription of version 3 may have one
byte more, which other readers pass over: 1 says that the member holds on to what it owns while the plan is made.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from protocol.errors import ProtocolError

VERSION: Final = 3
"""Of what is written."""
_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")
_HEAD: Final = _SHORT.pack(VERSION)
_NULL_STRING: Final = _SHORT.pack(-1)
_NULL_BYTES: Final = _INT.pack(-1)
_HOLDS: Final = b"\x01"
_LEAST_TOPIC_BYTES: Final = 2
_LEAST_ENTRY_BYTES: Final = 6
_WITH_OWNED, _WITH_GENERATION, _WITH_RACK = 1, 2, 3


class SubscriptionFields(NamedTuple):
    """What a subscription holds; ``owned`` has partition numbers by topic, not sorted."""

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned: Mapping[str, list[int]] = {}
    generation: int = -1
    rack: str | None = None
    holds: bool = False


def speaks_kafka(blob: bytes) -> bool:
    """Whether the bytes are Kafka's: they begin with a version below 256. Cohort's former ones are a msgpack array."""
    return blob[:1] == b"\x00"


def encode_subscription_fields(fields: SubscriptionFields) -> bytes:
    """A subscription of version 3."""
    rack = _NULL_STRING if fields.rack is None else encode_topic(fields.rack)
    return b"".join(
        (
            _HEAD,
            _INT.pack(len(fields.topics)),
            *map(encode_topic, fields.topics),
            _bytes(fields.user_data),
            _INT.pack(len(fields.owned)),
            encode_entries(fields.owned),
            _INT.pack(fields.generation),
            rack,
            _HOLDS if fields.holds else b"",
        )
    )


def decode_subscription_fields(blob: bytes) -> SubscriptionFields:
    """Reads a subscription of any version. Raises ``ProtocolError`` when it does not parse."""
    reader = _Reader(blob, "subscription")
    version = reader.version()
    topics = reader.topics()
    user_data = reader.nullable_bytes()
    if version < _WITH_OWNED:
        return SubscriptionFields(topics, user_data)
    owned = reader.entries()
    generation = reader.int32() if version >= _WITH_GENERATION else -1
    rack = reader.nullable_string() if version >= _WITH_RACK else None
    return SubscriptionFields(topics, user_data, owned, generation, rack, version == VERSION and reader.rest == _HOLDS)


def decode_subscription_topics(blob: bytes) -> tuple[str, ...]:
    """The topics of a subscription; what follows them is not looked at. Raises ``ProtocolError``."""
    reader = _Reader(blob, "subscription")
    reader.version()
    return reader.topics()


def encode_topic(topic: str) -> bytes:
    """A topic's name, as an entry begins."""
    name = topic.encode()
    return _SHORT.pack(len(name)) + name


def encode_numbers(numbers: Iterable[int]) -> bytes:
    """Partition numbers, as an entry ends."""
    given = list(numbers)
    return struct.pack(f">i{len(given)}i", len(given), *given)


def encode_entries(by_topic: Mapping[str, Iterable[int]]) -> bytes:
    """Entries, one after the other, without their count."""
    return b"".join(encode_topic(topic) + encode_numbers(numbers) for topic, numbers in by_topic.items())


def encode_assignment_of_entries(count: int, entries: Iterable[bytes], user_data: bytes = b"") -> bytes:
    """An assignment of ``count`` entries, each a topic that no other one has with its partition numbers."""
    return b"".join((_HEAD, _INT.pack(count), *entries, _bytes(user_data)))


def decode_assignment_fields(blob: bytes) -> tuple[dict[str, list[int]], bytes]:
    """Partition numbers by topic, and user data, of an assignment. Raises ``ProtocolError`` when it does not parse."""
    reader = _Reader(blob, "assignment")
    reader.version()
    return reader.entries(), reader.nullable_bytes()


def decode_sticky_user_data(data: bytes) -> tuple[dict[str, list[int]], int]:
    """What members of Kafka's ``StickyAssignor`` say of their last assignment: partitions by topic, and its generation.

    They put it into their user data, as they have given everything up when they join: the entries, and since KIP-341 the
    generation as int32, else -1. Raises ``ProtocolError`` when it does not parse.
    """
    reader = _Reader(data, "user data of a sticky subscription")
    owned = reader.entries()
    return owned, reader.int32() if reader.rest else -1


def _bytes(data: bytes) -> bytes:
    """Kafka's consumers send null, not nothing."""
    return _INT.pack(len(data)) + data if data else _NULL_BYTES


class _Reader:
    """Reads fields one after the other; no count makes it allocate more than the bytes that are there."""

    def __init__(self, blob: bytes, what: str) -> None:
        self._blob = blob
        self._at = 0
        self._what = what

    @property
    def rest(self) -> bytes:
        """What was not read."""
        return self._blob[self._at :]

    def version(self) -> int:
        """The version, which comes first."""
        version: int = self._unpacked(_SHORT)
        if version < 0:
            raise ProtocolError(f"the {self._what} has the version {version}")
        return version

    def int32(self) -> int:
        """An int32."""
        return self._unpacked(_INT)

    def topics(self) -> tuple[str, ...]:
        """An array of strings."""
        return tuple(self._string() for _ in range(self._count(_LEAST_TOPIC_BYTES, "topics")))

    def nullable_string(self) -> str | None:
        """A string, or null."""
        size = self._unpacked(_SHORT)
        return None if size == -1 else self._text(size)

    def nullable_bytes(self) -> bytes:
        """Bytes; null is none."""
        size = self._unpacked(_INT)
        return b"" if size == -1 else self._taken(size)

    def entries(self) -> dict[str, list[int]]:
        """Partition numbers by topic; what several entries say of a topic is put together."""
        found: dict[str, list[int]] = {}
        for _ in range(self._count(_LEAST_ENTRY_BYTES, "topics with partitions")):
            topic = self._string()
            count = self._count(_INT.size, "partitions")
            numbers = struct.unpack(f">{count}i", self._taken(count * _INT.size))
            if count and min(numbers) < 0:
                raise ProtocolError(f"partition {min(numbers)} of topic {topic!r} is no partition number")
            found.setdefault(topic, []).extend(numbers)
        return found

    def _string(self) -> str:
        return self._text(self._unpacked(_SHORT))

    def _text(self, size: int) -> str:
        try:
            return self._taken(size).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"a string of the {self._what} is no UTF-8: {error}") from error

    def _count(self, least: int, what: str) -> int:
        count: int = self._unpacked(_INT)
        left = len(self._blob) - self._at
        if not 0 <= count * least <= left:
            raise ProtocolError(f"the {self._what} says it has {count} {what} in {left} bytes")
        return count

    def _unpacked(self, form: struct.Struct) -> int:
        value: int = form.unpack(self._taken(form.size))[0]
        return value

    def _taken(self, size: int) -> bytes:
        end = self._at + size
        if size < 0 or end > len(self._blob):
            raise ProtocolError(
                f"the {self._what} ends before its fields: {size} bytes at {self._at} of {len(self._blob)}"
            )
        taken = self._blob[self._at : end]
        self._at = end
        return taken
