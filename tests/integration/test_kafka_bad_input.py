"""Bad input of Kafka's clients harms the one who sent it and nobody else: as ``test_bad_input`` has it for Cohort's own."""

from __future__ import annotations

import gzip
from collections.abc import AsyncIterator
from typing import Any

import pytest

from coordinator import Coordinator
from protocol.errors import ErrorCode
from protocol.kafka.batch import HEADER_BYTES, only_batch
from protocol.kafka.headers import RequestHeader, encode_request_header
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.kafka.messages.delete_topics_request import DeleteTopicsRequest
from protocol.kafka.messages.heartbeat_request import HeartbeatRequest
from protocol.kafka.messages.list_offsets_request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.coordinator.kafka.any_request import BATCH
from tests.coordinator.kafka.wire import KafkaWire, connected, framed, request_frame

PIPELINED = 2_000
LATEST = -1


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(
        kafka_port=-1, log_level="error", max_frame_bytes=1 << 20, max_message_bytes=100_000, max_in_flight=16
    ) as running:
        yield running


@pytest.fixture
async def bystander(coordinator: Coordinator) -> AsyncIterator[KafkaWire]:
    """A sound connection that must notice nothing: it is asked once more when the test is over."""
    async with connected(coordinator.kafka_address) as wire:
        compacted = CreatableTopicConfig("cleanup.policy", "compact")
        topics = [CreatableTopic("orders", 1, -1), CreatableTopic("latest", 1, -1, configs=[compacted])]
        made = await wire.ask(CreateTopicsRequest(topics), 5)
        assert [topic.error_code for topic in made.topics] == [0, 0]
        yield wire
        told = await wire.ask(MetadataRequest([MetadataRequestTopic(name="orders")]), 9)
        assert [(topic.error_code, len(topic.partitions)) for topic in told.topics] == [(0, 1)]


def said(api_key: int, version: int, body: bytes) -> bytes:
    return framed(encode_request_header(RequestHeader(api_key, version, 7, "c")) + body)


FLEXIBLE = encode_request_header(RequestHeader(3, 9, 7, "c"))

MALFORMED: dict[str, bytes] = {
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a frame of no bytes": b"\0\0\0\0",
    "a frame above the bound": b"\x7f\xff\xff\xff",
    "a negative length of a frame": b"\xff\xff\xff\xff",
    "less than a header": framed(b"\0\x03"),
    "a key that nobody knows": framed(b"\x7f\0\0\0\0\0\0\x01\xff\xff"),
    "a version that is not served": said(12, 99, bytes(30)),
    "a negative version": framed(b"\0\x0c\xff\xff\0\0\0\x07\xff\xff" + bytes(30)),
    "a client id of a length below -1": framed(b"\0\x03\0\x01\0\0\0\x07\xff\xfe" + bytes(4)),
    "a client id that leaves the request": framed(b"\0\x03\0\x01\0\0\0\x07\x7f\xffc" + bytes(4)),
    "a client id that is no UTF-8": framed(b"\0\x03\0\x01\0\0\0\x07\0\x01\xff" + bytes(4)),
    "a tagged field of a header that leaves the request": framed(FLEXIBLE[:-1] + b"\x01\0\x64"),
    "an array of a length below -1": said(3, 1, b"\xff\xff\xff\xfe"),
    "a string of a length below -1": said(12, 0, b"\xff\xfe" + bytes(8)),
    "null where there is none": said(12, 0, b"\xff\xff\0\0\0\x01\0\x01m"),
    "a string that leaves the request": said(12, 0, b"\x7f\xffg" + bytes(8)),
    "more items than bytes": said(3, 1, b"\x7f\xff\xff\xff\0\x01t"),
    "more items than bytes, compact": said(3, 9, b"\xff\xff\xff\xff\x0f\x02t"),
    "a varint of more than five bytes": said(3, 9, b"\xff\xff\xff\xff\xff\x01" + bytes(8)),
    "text that is no UTF-8": said(12, 0, b"\0\x01\xff\0\0\0\x01\0\x01m"),
    "a tagged field that leaves the request": said(3, 9, b"\x01\0\0\0\x01\0\x64"),
    "a request that is cut off": said(12, 4, b"\x02g\0\0"),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed_bytes_close_that_connection_only(
    coordinator: Coordinator, bystander: KafkaWire, what: str
) -> None:
    async with connected(coordinator.kafka_address) as wire:
        assert (await wire.ask(MetadataRequest([]), 1)).topics == []
        wire.writer.write(MALFORMED[what])
        assert await wire.is_closed()


async def test_requests_before_a_malformed_one_are_answered(coordinator: Coordinator, bystander: KafkaWire) -> None:
    async with connected(coordinator.kafka_address) as wire:
        sound = request_frame(MetadataRequest([MetadataRequestTopic(name="orders")]), 9, 5)
        wire.writer.write(sound + MALFORMED["null where there is none"] + sound)
        number, told = await wire.answer(3, 9)
        assert (number, [topic.error_code for topic in told.topics]) == (5, [0])
        assert await wire.is_closed()


async def test_bytes_behind_the_last_field_are_ignored(bystander: KafkaWire) -> None:
    frame = request_frame(HeartbeatRequest("nobody", 1, "m"), 4, 6)
    bystander.writer.write(framed(frame[4:] + b"a field of tomorrow"))
    number, told = await bystander.answer(12, 4)
    assert (number, told.error_code) == (6, ErrorCode.UNKNOWN_MEMBER_ID)


async def test_a_name_that_is_given_twice_is_answered_once(bystander: KafkaWire) -> None:
    told = await bystander.ask(MetadataRequest([MetadataRequestTopic(name="orders")] * 500), 4)
    assert [topic.name for topic in told.topics] == ["orders"]
    gone = await bystander.ask(DeleteTopicsRequest([], ["none"] * 500, 1000), 5)
    assert [(topic.name, topic.error_code) for topic in gone.responses] == [
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    ]


async def test_more_requests_than_allowed_at_once_wait_their_turn(
    coordinator: Coordinator, bystander: KafkaWire
) -> None:
    async with connected(coordinator.kafka_address) as wire:
        frames = (request_frame(HeartbeatRequest("nobody", 1, "m"), 4, number) for number in range(PIPELINED))
        wire.writer.write(b"".join(frames))
        for number in range(PIPELINED):
            assert (await wire.answer(12, 4))[0] == number


INNER = only_batch(BATCH)
CONTENT = BATCH[HEADER_BYTES:]


def with_header(**changes: int) -> bytes:
    """The batch with changes to its header, and a checksum that is right."""
    return INNER._replace(**changes).with_records(CONTENT)


BAD_BATCHES: dict[str, tuple[bytes, ErrorCode]] = {
    "nothing": (b"", ErrorCode.INVALID_RECORD),
    "no batch": (b"garbage" * 20, ErrorCode.CORRUPT_MESSAGE),
    "two batches": (BATCH + BATCH, ErrorCode.INVALID_RECORD),
    "a batch that is cut off": (BATCH[:-1], ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit": (BATCH[:-1] + b"\x02", ErrorCode.CORRUPT_MESSAGE),
    "format 0": (BATCH[:16] + b"\0" + BATCH[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "format 1": (BATCH[:16] + b"\1" + BATCH[17:], ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT),
    "a format of tomorrow": (BATCH[:16] + b"\3" + BATCH[17:], ErrorCode.CORRUPT_MESSAGE),
    "no records at all": (with_header(record_count=0), ErrorCode.INVALID_RECORD),
    "more records than there are": (with_header(record_count=9, last_offset_delta=8), ErrorCode.INVALID_RECORD),
    "a span wider than its records": (with_header(last_offset_delta=50), ErrorCode.INVALID_RECORD),
    "bytes behind the records": (INNER.with_records(CONTENT + b"junk"), ErrorCode.INVALID_RECORD),
    "a control batch": (with_header(attributes=1 << 5), ErrorCode.INVALID_RECORD),
    "a transactional batch without a transaction": (with_header(attributes=1 << 4), ErrorCode.INVALID_RECORD),
    "an attribute that nobody knows": (with_header(attributes=1 << 9), ErrorCode.INVALID_RECORD),
    "the time of an append": (with_header(attributes=1 << 3), ErrorCode.INVALID_TIMESTAMP),
    "a producer without a sequence": (with_header(producer_id=3), ErrorCode.INVALID_RECORD),
    "a compression that nobody knows": (with_header(attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    "no gzip": (with_header(attributes=1), ErrorCode.CORRUPT_MESSAGE),
    "a batch above the bound": (INNER.with_records(bytes(200_000)), ErrorCode.MESSAGE_TOO_LARGE),
    "a bomb": (
        INNER._replace(attributes=1).with_records(gzip.compress(bytes(50_000_000))[:99_000]),
        ErrorCode.MESSAGE_TOO_LARGE,
    ),
}


async def produced(wire: KafkaWire, topic: str, records: bytes) -> Any:
    data = TopicProduceData(topic, partition_data=[PartitionProduceData(0, records)])
    (told,) = (await wire.ask(ProduceRequest(None, -1, 1000, [data]), 9)).responses[0].partition_responses
    return told


async def end_of(wire: KafkaWire, topic: str) -> int:
    asked = ListOffsetsTopic(topic, [ListOffsetsPartition(0, -1, LATEST)])
    (found,) = (await wire.ask(ListOffsetsRequest(-1, topics=[asked]), 5)).topics[0].partitions
    end: int = found.offset
    return end


@pytest.mark.parametrize("what", BAD_BATCHES)
async def test_bad_batches_are_refused_by_name_and_leave_the_log_as_it_was(bystander: KafkaWire, what: str) -> None:
    records, code = BAD_BATCHES[what]
    told = await produced(bystander, "orders", records)
    assert (ErrorCode(told.error_code), told.base_offset) == (code, -1)
    assert told.error_message
    assert await end_of(bystander, "orders") == 0
    assert (await produced(bystander, "orders", BATCH)).error_code == ErrorCode.NONE


async def test_a_record_of_a_compacted_topic_needs_a_key(bystander: KafkaWire) -> None:
    assert (await produced(bystander, "latest", BATCH)).error_code == ErrorCode.INVALID_RECORD
    assert await end_of(bystander, "latest") == 0
