"""The blobs that consumers exchange through the group protocol: subscriptions and assignments.

The coordinator carries them without looking inside. What is written are Kafka's bytes (``protocol.consumer_protocol``), so
that Cohort's members and Kafka's share a group. What is read are also the bytes that Cohort's members wrote before: msgpack
arrays that begin with a version, of which a reader takes the fields it knows::

    subscription  [version, topics, user_data, {topic: [partition, ...]} owned, generation, rack, holds]
    assignment    [version, {topic: [partition, ...]}, user_data]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgpack

from protocol.codec import MAX_STRING_BYTES
from protocol.consumer_protocol import (
    SubscriptionFields,
    decode_assignment_fields,
    decode_subscription_fields,
    decode_subscription_topics,
    encode_assignment_of_entries,
    encode_entries,
    encode_subscription_fields,
    speaks_kafka,
)
from protocol.errors import ProtocolError

CONSUMER_PROTOCOL_TYPE: Final = "consumer"
"""Protocol type of groups whose members are consumers; their blobs are those of this module."""
SPARK_PROTOCOL_TYPE: Final = "spark-query"
"""Protocol type of groups that a query on Spark owns; what it reads is written as an assignment of this module."""

_ABSENT: Final[tuple[Any, ...]] = (b"", {}, -1, None, False)
"""What stands for the fields after the topics in a subscription that ends earlier."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member tells the assignor.

    ``owned_partitions`` and ``generation`` say what it held last and since when (KIP-429, KIP-792); -1 is no generation.
    ``rack`` is where it runs (KIP-881). ``group_instance_id`` comes from the join, not from the blob (KIP-345). ``holds``
    says that the member works on ``owned_partitions`` while the plan is made, whatever the assignor: as under a cooperative
    one, the plan gives none of them to another member before this one has given it up.
    """

    topics: tuple[str, ...]
    user_data: bytes = b""
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None
    group_instance_id: str | None = None
    holds: bool = False


def group_by_topic(partitions: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """Partition numbers by topic, both sorted."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped


def encode_subscription(subscription: Subscription) -> bytes:
    """The blob of a subscription."""
    return encode_subscription_fields(
        SubscriptionFields(
            subscription.topics,
            subscription.user_data,
            group_by_topic(subscription.owned_partitions),
            subscription.generation,
            subscription.rack,
            subscription.holds,
        )
    )


def decode_subscription(blob: bytes, group_instance_id: str | None = None) -> Subscription:
    """The subscription in ``blob``. Raises ``ProtocolError`` when it does not parse."""
    if speaks_kafka(blob):
        known = decode_subscription_fields(blob)
        owned = tuple(_sorted(known.owned))
        return Subscription(
            known.topics, known.user_data, owned, known.generation, known.rack, group_instance_id, known.holds
        )
    fields = _fields(blob, 2, "subscription")
    told: list[Any] = [*fields[1:7], *_ABSENT[len(fields) - 2 :]]
    topics, user_data, held, generation, rack, holds = told
    if not isinstance(topics, list) or not set(map(type, topics)) <= {str}:
        raise ProtocolError("the topics of a subscription are a list of strings")
    if not isinstance(user_data, bytes) or not isinstance(generation, int) or not isinstance(rack, str | None):
        raise ProtocolError("a subscription holds user data as bytes, a generation as integer and a rack as string")
    if not isinstance(holds, bool):
        raise ProtocolError("whether a subscription holds its partitions is a boolean")
    return Subscription(tuple(topics), user_data, _partitions(held), generation, rack, group_instance_id, holds)


def decode_topics(blob: bytes) -> tuple[str, ...]:
    """The topics of a subscription and nothing else of it: what follows them is not looked at, and may be long.

    Raises ``ProtocolError`` when version and topics do not parse.
    """
    if speaks_kafka(blob):
        return decode_subscription_topics(blob)
    reader = msgpack.Unpacker(max_buffer_size=len(blob))
    reader.feed(blob)
    try:
        fields = reader.read_array_header()
        version, topics = reader.unpack(), reader.unpack()
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError(f"the subscription is no msgpack: {type(error).__name__} {error}") from error
    if fields < 2 or not isinstance(version, int) or version < 0:
        raise ProtocolError("a subscription is an array of at least 2 fields that begins with its version")
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise ProtocolError("the topics of a subscription are a list of strings")
    return tuple(topics)


def encode_assignment(partitions: Iterable[TopicPartition], user_data: bytes = b"") -> bytes:
    """The blob of an assignment."""
    by_topic = group_by_topic(partitions)
    return encode_assignment_of_entries(len(by_topic), (encode_entries(by_topic),), user_data)


def decode_assignment(blob: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in ``blob``, sorted; none for an empty blob, which is what a member gets that the leader left out.

    Raises ``ProtocolError`` when it does not parse.
    """
    if not blob:
        return ()
    if speaks_kafka(blob):
        return tuple(_sorted(decode_assignment_fields(blob)[0]))
    return _partitions(_fields(blob, 2, "assignment")[1])


def assignment_user_data(blob: bytes) -> bytes:
    """What the leader added to an assignment; nothing for an empty blob. Raises ``ProtocolError`` when it does not parse."""
    if speaks_kafka(blob):
        return decode_assignment_fields(blob)[1]
    added = _fields(blob, 2, "assignment")[2:3] if blob else []
    if added and not isinstance(added[0], bytes):
        raise ProtocolError("an assignment holds user data as bytes")
    return added[0] if added else b""


def _fields(blob: bytes, at_least: int, what: str) -> list[Any]:
    try:
        # Within the bounds of the wire: the reader of a subscription goes on to ask a daemon about what it names.
        fields = msgpack.unpackb(blob, max_str_len=MAX_STRING_BYTES)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise ProtocolError(f"the {what} is no msgpack: {error}") from error
    if not isinstance(fields, list) or len(fields) < at_least or not isinstance(fields[0], int) or fields[0] < 0:
        raise ProtocolError(f"a {what} is an array of at least {at_least} fields that begins with its version")
    return fields


def _partitions(by_topic: Any) -> tuple[TopicPartition, ...]:
    if not isinstance(by_topic, Mapping) or not all(isinstance(topic, str) for topic in by_topic):
        raise ProtocolError("partitions are a map from topic to partition numbers")
    partitions: list[TopicPartition] = []
    for topic, numbers in sorted(by_topic.items()):
        if not isinstance(numbers, list):
            raise ProtocolError("partitions are a map from topic to partition numbers")
        for number in numbers:
            if type(number) is not int or number < 0:
                raise ProtocolError(f"partition {number!r} of topic {topic!r} is no partition number")
            partitions.append(TopicPartition(topic, number))
    return tuple(partitions)


def _sorted(by_topic: Mapping[str, list[int]]) -> Iterator[TopicPartition]:
    """Topic after topic, each with its numbers in their order."""
    for topic in sorted(by_topic):
        for number in sorted(by_topic[topic]):
            yield TopicPartition(topic, number)
