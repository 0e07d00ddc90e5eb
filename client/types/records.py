"""The plain types that users hand in and get back: records, offsets and where a record went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, Literal, NamedTuple

from client.types.serdes import K, V
from protocol.columns import Headers
from protocol.messages.records import READ_COMMITTED, READ_UNCOMMITTED
from protocol.subscription import TopicPartition

__all__ = [
    "ISOLATION_LEVELS",
    "ConsumerRecord",
    "GroupMetadata",
    "Headers",
    "IsolationLevel",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "Output",
    "RecordMetadata",
    "TopicPartition",
]


IsolationLevel = Literal["read_committed", "read_uncommitted"]
"""Whether records of open and of aborted transactions are left out, or read like any other."""
ISOLATION_LEVELS: Final[Mapping[str, int]] = {
    "read_committed": READ_COMMITTED,
    "read_uncommitted": READ_UNCOMMITTED,
}
"""The same as Fetch and ListOffsets have it."""


class OffsetAndMetadata(NamedTuple):
    """A committed position: the offset of the *next* record to read.

    ``metadata`` is free text kept with it. ``leader_epoch`` is the epoch of the last record read, -1 when unknown (KIP-320).
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


class OffsetAndTimestamp(NamedTuple):
    """The first record at or after a point in time: its offset, and its own timestamp in milliseconds since 1970."""

    offset: int
    timestamp_ms: int


class ConsumerRecord(NamedTuple, Generic[K, V]):
    """One record as a consumer delivers it; ``ConsumerRecord[K, V]`` by the deserializers of the consumer.

    ``timestamp_ms`` counts from 1970 in UTC. ``key`` and ``value`` are bytes or None, or what the deserializers make of
    them; null stays None, whatever the types say. ``headers`` holds ``(name, value)`` pairs in the order they were sent.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: K
    value: V
    headers: Headers = ()


class RecordMetadata(NamedTuple):
    """Where a record went. ``offset`` is -1 when the producer did not ask for an acknowledgement (acks 0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Output(NamedTuple):
    """A record that a handler of ``Consumer.process(handler, producer=...)`` returns, to be sent to ``topic``.

    ``value`` and ``key`` are bytes or None, or what the producer's serializers take. ``partition`` is chosen by the
    producer unless it is given. ``headers`` holds ``(name, value)`` pairs.
    """

    topic: str
    value: Any = None
    key: Any = None
    partition: int | None = None
    headers: Headers = ()


class GroupMetadata(NamedTuple):
    """Who a consumer is in its group: what fences offsets that are committed in its name (KIP-447).

    ``generation`` is -1 and ``member_id`` empty outside a group. ``topic_ids`` are the ids of the topics that it reads by
    name, as far as it has seen them: offsets of a topic that was deleted and created anew since are refused.
    """

    group_id: str
    generation: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
    topic_ids: tuple[tuple[str, str], ...] = ()
