"""DescribeTopicPartitions over the Kafka port: pages, and cursors that no client would send."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.embedded import Coordinator
from coordinator.kafka import topic_descriptions
from protocol.errors import ErrorCode
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.describe_topic_partitions_request import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from protocol.kafka.messages.describe_topic_partitions_response import DescribeTopicPartitionsResponse
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from tests.coordinator.kafka.wire import KafkaWire, connected

SIZES = {"a": 3, "b": 1, "c": 4}


@pytest.fixture
async def wire() -> AsyncIterator[KafkaWire]:
    async with (
        Coordinator(kafka_port=-1, flush="os", node_id=1) as running,
        connected(running.kafka_address) as connection,
    ):
        topics = [CreatableTopic(name, size, 1) for name, size in SIZES.items()]
        await connection.ask(CreateTopicsRequest(topics, 10_000), 7)
        yield connection


async def page(
    wire: KafkaWire, names: str = "abc", limit: int = 100, cursor: tuple[str, int] | None = None
) -> DescribeTopicPartitionsResponse:
    at = None if cursor is None else Cursor(*cursor)
    request = DescribeTopicPartitionsRequest([TopicRequest(name) for name in names], limit, at)
    told: DescribeTopicPartitionsResponse = await wire.ask(request, 0)
    return told


def found(told: DescribeTopicPartitionsResponse) -> list[tuple[str | None, list[int]]]:
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in told.topics]


async def test_it_says_of_partitions_what_metadata_says(wire: KafkaWire) -> None:
    (known,) = (await wire.ask(MetadataRequest([MetadataRequestTopic(name="c")]), 12)).topics
    (told,) = (await page(wire, "c")).topics
    assert (told.error_code, told.name, told.topic_id, told.is_internal) == (0, "c", known.topic_id, False)
    for partition, expected in zip(told.partitions, known.partitions, strict=True):
        assert (partition.leader_id, partition.leader_epoch) == (1, expected.leader_epoch)
        assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])


@pytest.mark.parametrize("names", ["abc", "cba", ""])
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 8, 100])
async def test_pages_have_each_partition_once_in_the_order_of_names(wire: KafkaWire, names: str, limit: int) -> None:
    seen: list[tuple[str | None, int]] = []
    cursor: tuple[str, int] | None = None
    while True:
        told = await page(wire, names, limit, cursor)
        read = [(name, index) for name, indexes in found(told) for index in indexes]
        assert len(read) <= limit
        seen += read
        if told.next_cursor is None:
            break
        cursor = told.next_cursor.topic_name, told.next_cursor.partition_index
    expected = [(name, index) for name, size in SIZES.items() for index in range(size)]
    assert [each for each in seen if each[0] in SIZES] == expected
    assert len(set(seen)) == len(seen)
    internal = {name for name, _ in seen} - SIZES.keys()
    assert internal == (set() if names else {"__consumer_offsets", "__transaction_state"})


async def test_a_page_has_an_end_whatever_is_asked_for(wire: KafkaWire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_descriptions, "MOST_PARTITIONS", 2)
    for limit, most in ((2**31 - 1, 2), (0, 1), (-5, 1)):
        told = await page(wire, "abc", limit)
        assert found(told) == [("a", list(range(most)))]
        assert told.next_cursor is not None
        assert (told.next_cursor.topic_name, told.next_cursor.partition_index) == ("a", most)


async def test_topics_that_are_not_there_are_told_by_name(wire: KafkaWire) -> None:
    told = await page(wire, "bx ")
    assert [(topic.name, topic.error_code) for topic in told.topics] == [
        (" ", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("b", ErrorCode.NONE),
        ("x", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("cursor", [("a", -1), ("a", -(2**31)), ("d", 0), ("", 0), ("ü" * 300, 3)])
async def test_a_cursor_that_cannot_be_is_refused(wire: KafkaWire, cursor: tuple[str, int]) -> None:
    told = await page(wire, "aba", cursor=cursor)
    assert [(topic.name, topic.error_code) for topic in told.topics] == [
        ("a", ErrorCode.INVALID_REQUEST),
        ("b", ErrorCode.INVALID_REQUEST),
    ]
    assert told.next_cursor is None


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        (("a", 2**31 - 1), [("a", []), ("b", [0]), ("c", [0, 1, 2, 3])]),
        (("bb", 7), [("c", [0, 1, 2, 3])]),
        (("c", 3), [("c", [3])]),
        (("zzz", 0), []),
    ],
)
async def test_a_cursor_may_be_at_what_is_gone(
    wire: KafkaWire, cursor: tuple[str, int], expected: list[tuple[str, list[int]]]
) -> None:
    """Topics are deleted, and others made, between two pages."""
    assert found(await page(wire, "", cursor=cursor)) == expected
