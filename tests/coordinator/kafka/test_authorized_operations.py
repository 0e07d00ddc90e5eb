"""What a client may do, where it asks for it: all that Kafka's ``AclEntry.supportedOperations`` names for the resource."""

from __future__ import annotations

from typing import Any, Final

import pytest

from coordinator.kafka.cluster import _FEWEST_KEPT
from protocol.errors import ErrorCode
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.describe_cluster_request import DescribeClusterRequest
from protocol.kafka.messages.describe_groups_request import DescribeGroupsRequest
from protocol.kafka.messages.describe_topic_partitions_request import DescribeTopicPartitionsRequest, TopicRequest
from protocol.kafka.messages.join_group_request import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from tests.coordinator.kafka.wire import KafkaWire

NOT_TOLD: Final = -(2**31)
TOPIC: Final = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
CLUSTER: Final = sum(1 << code for code in (5, 7, 8, 9, 10, 11, 12))
GROUP: Final = sum(1 << code for code in (3, 6, 8, 10, 11))
"""Of Kafka 4.3 and 4.4; before there were settings of groups it was 3, 6, 8."""


@pytest.fixture
async def topics(wire: KafkaWire) -> int:
    """As many topics as an answer about all of them is kept for."""
    await wire.ask(
        CreateTopicsRequest([CreatableTopic(f"t{number}", 1, 1) for number in range(_FEWEST_KEPT)], 9_000), 4
    )
    return _FEWEST_KEPT


def told_of(response: Any) -> tuple[set[int], int]:
    """Of topics and of the cluster."""
    return {topic.topic_authorized_operations for topic in response.topics}, response.cluster_authorized_operations


@pytest.mark.parametrize("version", range(8, 14))
@pytest.mark.usefixtures("topics")
async def test_metadata_tells_them_to_who_asks(wire: KafkaWire, version: int) -> None:
    """Of topics and of the cluster each for itself, and answers about all topics that are kept are not mixed up."""
    for wanted in ([MetadataRequestTopic(name="t0")], None):
        for topic, cluster in ((True, True), (False, True), (True, False), (False, False), (True, True)):
            asks_cluster = cluster and version <= 10
            told = await wire.ask(MetadataRequest(wanted, False, asks_cluster, topic), version)
            expected = {TOPIC} if topic else {NOT_TOLD}, CLUSTER if asks_cluster else NOT_TOLD
            assert told_of(told) == expected


async def test_metadata_tells_them_of_names_that_are_no_topics_and_not_of_ids(wire: KafkaWire) -> None:
    wanted = [MetadataRequestTopic(name="none"), MetadataRequestTopic(b"\1" * 16, None)]
    told = await wire.ask(MetadataRequest(wanted, False, False, True), 12)
    assert [(topic.error_code, topic.topic_authorized_operations) for topic in told.topics] == [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, TOPIC),
        (100, NOT_TOLD),
    ]


@pytest.mark.usefixtures("topics")
async def test_a_description_of_partitions_always_has_them(wire: KafkaWire) -> None:
    asked = DescribeTopicPartitionsRequest([TopicRequest("t0"), TopicRequest("none")], 100)
    told = await wire.ask(asked, 0)
    assert [topic.topic_authorized_operations for topic in told.topics] == [TOPIC, TOPIC]


async def test_a_description_of_the_cluster_has_them_for_who_asks(wire: KafkaWire) -> None:
    for version in (0, 1):
        for asks, expected in ((True, CLUSTER), (False, NOT_TOLD)):
            told = await wire.ask(DescribeClusterRequest(asks), version)
            assert (told.error_code, told.cluster_authorized_operations) == (ErrorCode.NONE, expected)


async def test_descriptions_of_groups_have_them_for_who_asks(wire: KafkaWire) -> None:
    protocols = [JoinGroupRequestProtocol("range", b"")]
    await wire.ask(JoinGroupRequest("g", 10_000, 10_000, "", None, "consumer", protocols), 3)
    for version in range(3, 7):
        for asks, expected in ((True, GROUP), (False, NOT_TOLD)):
            described, missing = (await wire.ask(DescribeGroupsRequest(["g", "none"], asks), version)).groups
            assert (described.error_code, described.authorized_operations) == (ErrorCode.NONE, expected)
            assert missing.authorized_operations == (NOT_TOLD if version >= 6 else expected)
