"""Topics by their ids (KIP-516) in Produce, Metadata, CreateTopics and DeleteTopics; of Fetch see ``test_fetch``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator.embedded import Coordinator
from coordinator.kafka.codes import KafkaCode
from coordinator.server.handlers import produced_batches
from protocol.errors import ErrorCode
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.coordinator.kafka.wire import KafkaWire, connected, request_frame
from tests.protocol.kafka.written import Record, written

NOBODYS = b"?" * 16
BATCH = written([Record(b"k", b"v")])


async def made(wire: KafkaWire, name: str = "t") -> bytes:
    (topic,) = (await wire.ask(CreateTopicsRequest([CreatableTopic(name, 2, 1)], 10_000), 7)).topics
    topic_id: bytes = topic.topic_id
    return topic_id


async def deleted(wire: KafkaWire, topic_id: bytes) -> None:
    (told,) = (await wire.ask(DeleteTopicsRequest([DeleteTopicState(None, topic_id)], timeout_ms=9_000), 6)).responses
    assert (told.error_code, told.name, told.topic_id) == (0, "t", topic_id)


def producing(*topic_ids: bytes, acks: int = -1, batch: bytes = BATCH) -> ProduceRequest:
    topics = [TopicProduceData("", each, [PartitionProduceData(0, batch)]) for each in topic_ids]
    return ProduceRequest(None, acks, 9_000, topics)


def codes(told: Any) -> dict[bytes, list[int]]:
    return {topic.topic_id: [each.error_code for each in topic.partition_responses] for topic in told.responses}


async def test_batches_are_taken_for_topics_by_their_ids(wire: KafkaWire) -> None:
    t, u = await made(wire), await made(wire, "u")
    told = await wire.ask(producing(u, NOBODYS, t, bytes(16)), 13)
    unknown = KafkaCode.UNKNOWN_TOPIC_ID
    assert codes(told) == {u: [0], t: [0], NOBODYS: [unknown], bytes(16): [unknown]}
    by_id = {topic.topic_id: topic.partition_responses[0] for topic in told.responses}
    assert by_id[t].base_offset == 0
    assert "no topic with the id 3f3f" in by_id[NOBODYS].error_message


async def test_a_topic_that_is_not_there_ends_a_connection_without_acks(wire: KafkaWire) -> None:
    await made(wire)
    wire.writer.write(request_frame(producing(NOBODYS, acks=0), 13, 1))
    assert await wire.is_closed()


async def test_batches_for_an_id_are_not_taken_by_another_topic_of_the_name(
    coordinator: Coordinator, wire: KafkaWire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is made anew while a thread checks the batch."""
    old = await made(wire)
    checking, checked = asyncio.Event(), asyncio.Event()

    async def check(work: Any) -> None:
        checking.set()
        await checked.wait()
        work()

    monkeypatch.setattr(
        "coordinator.server.handlers.produce._in_thread", lambda work: asyncio.ensure_future(check(work))
    )
    large = written([Record(None, bytes(produced_batches.MAX_ON_LOOP_BYTES + 1))])
    async with connected(coordinator.kafka_address) as producer:
        waiting = asyncio.create_task(producer.ask(producing(old, batch=large), 13))
        await checking.wait()
        await deleted(wire, old)
        new = await made(wire)
        checked.set()
        assert codes(await waiting) == {old: [KafkaCode.UNKNOWN_TOPIC_ID]}
    (told,) = (await wire.ask(producing(new), 13)).responses
    assert told.partition_responses[0].base_offset == 0


@pytest.mark.parametrize("version", [12, 13])
async def test_metadata_by_id_and_by_name(wire: KafkaWire, version: int) -> None:
    topic_id = await made(wire)
    named = [MetadataRequestTopic(topic_id, None), MetadataRequestTopic(name="t"), MetadataRequestTopic(NOBODYS, None)]
    told = await wire.ask(MetadataRequest(named, allow_auto_topic_creation=False), version)
    assert [(topic.topic_id, topic.name, topic.error_code) for topic in told.topics] == [
        (topic_id, "t", ErrorCode.NONE),
        (topic_id, "t", ErrorCode.NONE),
        (NOBODYS, None, KafkaCode.UNKNOWN_TOPIC_ID),
    ]
    assert told.error_code == ErrorCode.NONE
