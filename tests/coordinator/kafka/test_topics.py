"""Topics and settings through the port for Kafka's clients."""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator.embedded import Coordinator
from protocol.errors import ErrorCode
from protocol.kafka.messages import alter_configs_request, incremental_alter_configs_request
from protocol.kafka.messages.create_partitions_request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from protocol.kafka.messages.create_topics_request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from protocol.kafka.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from protocol.kafka.messages.describe_configs_request import DescribeConfigsRequest, DescribeConfigsResource
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from tests.coordinator.kafka.wire import KafkaWire, connected

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1, default_partitions=3) as running:
        yield running


def creating(*topics: CreatableTopic, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(list(topics), 10_000, validate_only)


async def settings(wire: KafkaWire, topic: str, *names: str) -> dict[str, Any]:
    """Settings of a topic, by name."""
    asked = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, topic, list(names) or None)])
    result = (await wire.ask(asked, 4)).results[0]
    assert result.error_code == 0
    return {each.name: each for each in result.configs}


async def test_a_topic_is_made_with_partitions_and_settings(wire: KafkaWire) -> None:
    wanted = CreatableTopic("t", 2, 1, [], [CreatableTopicConfig("retention.ms", "5000")])
    for version in range(2, 8):
        wanted.name = f"t{version}"
        made = (await wire.ask(creating(wanted), version)).topics
        assert [(topic.name, topic.error_code) for topic in made] == [(f"t{version}", 0)]
    (topic,) = made
    assert (topic.num_partitions, topic.replication_factor, len(topic.topic_id)) == (2, 1, 16)
    assert any(topic.topic_id)
    assert {each.name: (each.value, each.config_source) for each in topic.configs}["retention.ms"] == ("5000", 1)
    again = (await wire.ask(creating(CreatableTopic("t7", -1, -1)), 7)).topics[0]
    assert (again.error_code, again.num_partitions) == (ErrorCode.TOPIC_ALREADY_EXISTS, -1)
    assert "t7" in again.error_message


async def test_partitions_may_be_placed_on_the_one_node_that_there_is(wire: KafkaWire) -> None:
    here = [CreatableReplicaAssignment(number, [1]) for number in range(2)]
    elsewhere = [CreatableReplicaAssignment(0, [2])]
    gap = [CreatableReplicaAssignment(1, [1])]
    made = await wire.ask(
        creating(
            *(CreatableTopic(name, -1, -1, placed) for name, placed in (("a", here), ("b", elsewhere), ("c", gap)))
        ),
        5,
    )
    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert [(topic.name, topic.error_code) for topic in made.topics] == [("a", 0), ("b", refused), ("c", refused)]
    assert made.topics[0].num_partitions == 2


async def test_what_is_only_validated_is_not_made(wire: KafkaWire) -> None:
    made = (await wire.ask(creating(CreatableTopic("t", -1, -1), validate_only=True), 7)).topics[0]
    assert made.error_code == 0
    gone = (await wire.ask(DeleteTopicsRequest([DeleteTopicState("t")], [], 10_000), 6)).responses[0]
    assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_topics_go_by_name_and_by_id(wire: KafkaWire) -> None:
    made = (await wire.ask(creating(*(CreatableTopic(name, 1, 1) for name in "abc")), 7)).topics
    gone = await wire.ask(DeleteTopicsRequest([], ["a", "a", "none"], 10_000), 5)
    assert [(topic.name, topic.error_code) for topic in gone.responses] == [
        ("a", 0),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    ids = [DeleteTopicState(None, made[1].topic_id), DeleteTopicState("c"), DeleteTopicState(None, b"\1" * 16)]
    gone = await wire.ask(DeleteTopicsRequest(ids, [], 10_000), 6)
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in gone.responses] == [
        ("b", made[1].topic_id, 0),
        ("c", made[2].topic_id, 0),
        (None, b"\1" * 16, 100),
    ]


async def test_partitions_are_added_where_the_one_node_is(wire: KafkaWire) -> None:
    await wire.ask(creating(CreatableTopic("t", 1, 1)), 7)
    here, elsewhere = CreatePartitionsAssignment([1]), CreatePartitionsAssignment([2])

    async def added(count: int, *placed: CreatePartitionsAssignment, topic: str = "t") -> int:
        asked = CreatePartitionsRequest([CreatePartitionsTopic(topic, count, list(placed))], 10_000)
        code: int = (await wire.ask(asked, 3)).results[0].error_code
        return code

    assert await added(3, here) == ErrorCode.INVALID_REPLICA_ASSIGNMENT  # one for each that is new
    assert await added(3, here, elsewhere) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert await added(3, here, here) == ErrorCode.NONE
    assert await added(3, here, topic="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len((await wire.ask(MetadataRequest([MetadataRequestTopic(name="t")]), 5)).topics[0].partitions) == 3


async def test_more_partitions_than_there_could_be_take_no_memory(wire: KafkaWire) -> None:
    await wire.ask(creating(CreatableTopic("t", 1, 1)), 7)
    topic = CreatePartitionsTopic("t", 20_000_000, [CreatePartitionsAssignment([1])])
    tracemalloc.start()
    try:
        (told,) = (await wire.ask(CreatePartitionsRequest([topic], 10_000), 3)).results
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert told.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


async def test_partitions_are_added_but_not_placed(wire: KafkaWire) -> None:
    await wire.ask(creating(CreatableTopic("t", 1, 1), CreatableTopic("u", 1, 1)), 7)
    placed = [CreatePartitionsAssignment([2])]
    asked = CreatePartitionsRequest(
        [CreatePartitionsTopic("t", 3, None), CreatePartitionsTopic("u", 2, placed)], 10_000
    )
    for version in range(4):
        asked.topics[0].count += 1
        added = (await wire.ask(asked, version)).results
        assert [(each.name, each.error_code) for each in added] == [("t", 0), ("u", 39)]
    asked.topics[0].count = 1
    added = (await wire.ask(asked, 3)).results
    assert added[0].error_code == ErrorCode.INVALID_PARTITIONS
    assert added[0].error_message


async def test_settings_of_kafka_s_without_effect_are_kept_and_shown(tmp_path: Path) -> None:
    """They are there again after a restart: programs that manage topics compare them."""
    given = [CreatableTopicConfig("compression.type", "lz4"), CreatableTopicConfig("flush.ms", "1000")]
    async with Coordinator(kafka_port=-1, data_dir=str(tmp_path)) as running, connected(running.kafka_address) as wire:
        assert (await wire.ask(creating(CreatableTopic("t", 1, 1, [], given)), 7)).topics[0].error_code == 0
    async with Coordinator(kafka_port=-1, data_dir=str(tmp_path)) as running, connected(running.kafka_address) as wire:
        shown = await settings(wire, "t")
        assert (shown["compression.type"].value, shown["compression.type"].config_source) == ("lz4", 1)
        assert (shown["flush.ms"].value, shown["flush.ms"].config_type) == ("1000", 5)
        assert (shown["preallocate"].value, shown["preallocate"].config_source) == ("false", 5)
        refused = CreatableTopic("u", 1, 1, [], [CreatableTopicConfig("retension.ms", "1")])
        told = (await wire.ask(creating(refused), 7)).topics[0]
        assert (told.error_code, told.num_partitions) == (ErrorCode.INVALID_CONFIG, -1)
        assert "retention.ms" in told.error_message


async def test_of_a_setting_without_effect_the_log_tells_once_whether_a_topic_is_made_or_changed() -> None:
    given = [CreatableTopicConfig("flush.ms", "1000"), CreatableTopicConfig("retention.ms", "1000")]
    changes = [
        incremental_alter_configs_request.AlterableConfig(name, SET, "1000") for name in ("flush.ms", "flush.messages")
    ]
    resource = incremental_alter_configs_request.AlterConfigsResource(TOPIC, "t", changes)
    with capture_logs() as logs:
        async with (
            Coordinator(kafka_port=-1, flush="os", log_level="info") as running,
            connected(running.kafka_address) as wire,
        ):
            for name in ("made", "t"):
                await wire.ask(creating(CreatableTopic(name, 1, 1, [], given)), 7)
            request = incremental_alter_configs_request.IncrementalAlterConfigsRequest([resource])
            assert (await wire.ask(request, 1)).responses[0].error_code == 0
    told = [(line["topic"], line["setting"]) for line in logs if line["event"] == "topic_setting_without_effect"]
    assert told == [("made", "flush.ms"), ("t", "flush.messages")]


async def test_settings_are_changed_one_by_one(wire: KafkaWire) -> None:
    await wire.ask(creating(CreatableTopic("t", 1, 1)), 7)

    async def change(name: str, operation: int, value: str | None) -> Any:
        entry = incremental_alter_configs_request.AlterableConfig(name, operation, value)
        resource = incremental_alter_configs_request.AlterConfigsResource(TOPIC, "t", [entry])
        request = incremental_alter_configs_request.IncrementalAlterConfigsRequest([resource])
        return (await wire.ask(request, 1)).responses[0]

    assert (await change("retention.ms", SET, "77")).error_code == 0
    assert (await change("flush.ms", SET, "5")).error_code == 0
    assert (await change("cleanup.policy", APPEND, "compact")).error_code == 0
    shown = await settings(wire, "t", "retention.ms", "flush.ms", "cleanup.policy")
    assert {name: each.value for name, each in shown.items()} == {
        "retention.ms": "77", "flush.ms": "5", "cleanup.policy": "compact,delete",
    }  # fmt: skip
    assert (await change("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    assert (await change("retention.ms", DELETE, None)).error_code == 0
    assert (await change("flush.ms", DELETE, None)).error_code == 0
    shown = await settings(wire, "t")
    assert shown["cleanup.policy"].value == "compact"
    for operation, value, policy in ((SUBTRACT, "compact", ""), (APPEND, "delete", "delete"), (SET, "", "")):
        assert (await change("cleanup.policy", operation, value)).error_code == 0
        assert (await settings(wire, "t", "cleanup.policy"))["cleanup.policy"].value == policy
    assert [shown[name].config_source for name in ("retention.ms", "flush.ms")] == [5, 5]
    assert (await change("no.such", SET, "1")).error_code == ErrorCode.INVALID_CONFIG
    for name in ("cleanup.policy", "flush.ms"):  # no value is not the empty one
        for operation in (SET, APPEND, SUBTRACT):
            refused = await change(name, operation, None)
            assert refused.error_code == ErrorCode.INVALID_REQUEST
            assert f"{name} has no value: to have the daemon's, the operation is 1" in refused.error_message
        without = CreatableTopic("u", 1, 1, configs=[CreatableTopicConfig(name, None)])
        made = (await wire.ask(creating(without), 7)).topics[0]
        assert (made.error_code, made.error_message) == (
            ErrorCode.INVALID_CONFIG, f"{name} has no value: leave it out to have the daemon's",
        )  # fmt: skip
    assert (await change("retention.ms", APPEND, "1")).error_code == ErrorCode.INVALID_CONFIG


async def test_settings_are_changed_all_at_once(wire: KafkaWire) -> None:
    """Those that AlterConfigs does not name go back to the daemon's."""
    given = [CreatableTopicConfig("retention.ms", "5"), CreatableTopicConfig("flush.ms", "6")]
    await wire.ask(creating(CreatableTopic("t", 1, 1, [], given)), 7)
    entry = alter_configs_request.AlterableConfig("segment.ms", "7000")
    resources = [
        alter_configs_request.AlterConfigsResource(TOPIC, "t", [entry]),
        alter_configs_request.AlterConfigsResource(BROKER, "1", [entry]),
    ]
    for version in range(3):
        told = (await wire.ask(alter_configs_request.AlterConfigsRequest(resources), version)).responses
        assert [(each.resource_type, each.resource_name, each.error_code) for each in told] == [
            (TOPIC, "t", 0),
            (BROKER, "1", ErrorCode.INVALID_REQUEST),
        ]
    shown = await settings(wire, "t")
    assert {name for name, each in shown.items() if each.config_source == 1} == {"segment.ms"}


async def test_a_broker_shows_its_settings_under_kafka_s_names(wire: KafkaWire) -> None:
    resources = [DescribeConfigsResource(BROKER, name, None) for name in ("1", "2", "")]
    resources.append(DescribeConfigsResource(8, "1", None))
    for version in range(1, 5):
        here, other, all_of_them, loggers = (
            await wire.ask(DescribeConfigsRequest(resources, include_synonyms=True), version)
        ).results
        shown = {each.name: each for each in here.configs}
        assert shown["num.partitions"].value == "3"
        assert (shown["num.partitions"].config_source, shown["num.partitions"].read_only) == (4, True)
        assert shown["auto.create.topics.enable"].value == "true"
        host, port = wire.writer.get_extra_info("peername")
        listeners = shown["advertised.listeners"]
        assert (listeners.value, listeners.config_source) == (f"PLAINTEXT://{host}:{port}", 4)
        assert shown["offsets.retention.minutes"].value == str(7 * 24 * 60)
        assert [each.name for each in shown["node.id"].synonyms] == ["node.id"]
        assert (all_of_them.error_code, all_of_them.configs) == (0, [])
        assert {other.error_code, loggers.error_code} == {ErrorCode.INVALID_REQUEST}
        assert "node 1" in other.error_message
    assert shown["log.retention.ms"].config_type == 5
    unknown = DescribeConfigsRequest([DescribeConfigsResource(TOPIC, "none", None)])
    assert (await wire.ask(unknown, 4)).results[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
