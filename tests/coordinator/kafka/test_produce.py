"""Produce over the Kafka port: what is told of single records for which a batch is refused (KIP-467)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.embedded import Coordinator
from protocol.errors import ErrorCode
from protocol.kafka.batch import HEADER_BYTES, only_batch
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.kafka.messages.produce_response import PartitionProduceResponse
from tests.coordinator.kafka.wire import KafkaWire, connected
from tests.protocol.kafka.written import Record, written

RECORD_ERRORS_SINCE = 8
KEYLESS = [Record(b"k", b"v"), Record(None, b"v"), Record(b"", b"v"), Record(None, None)]


@pytest.fixture
async def wire() -> AsyncIterator[KafkaWire]:
    async with (
        Coordinator(kafka_port=-1, flush="os", node_id=1) as running,
        connected(running.kafka_address) as connection,
    ):
        topic = CreatableTopic("t", 2, 1, configs=[CreatableTopicConfig("cleanup.policy", "compact")])
        await connection.ask(CreateTopicsRequest([topic], 10_000), 4)
        yield connection


async def produce(wire: KafkaWire, version: int, *batches: bytes) -> list[PartitionProduceResponse]:
    data = [PartitionProduceData(index, batch) for index, batch in enumerate(batches)]
    told = await wire.ask(ProduceRequest(None, -1, 9_000, [TopicProduceData("t", partition_data=data)]), version)
    partitions: list[PartitionProduceResponse] = told.responses[0].partition_responses
    return partitions


@pytest.mark.parametrize("version", range(3, 13))
async def test_records_without_a_key_are_named(wire: KafkaWire, version: int) -> None:
    """Clients fail these records for themselves; the others of the batch can be sent again without them."""
    refused, taken = await produce(wire, version, written(KEYLESS), written(KEYLESS[:1]))
    assert (refused.error_code, taken.error_code) == (ErrorCode.INVALID_RECORD, ErrorCode.NONE)
    assert (taken.record_errors, taken.error_message) == ([], None)
    named = [(each.batch_index, each.batch_index_error_message) for each in refused.record_errors]
    assert named == ([(1, None), (3, None)] if version >= RECORD_ERRORS_SINCE else [])
    if version >= RECORD_ERRORS_SINCE:
        assert refused.error_message == "topic 't': record 1 of the batch has no key, and 1 more"


async def test_a_record_out_of_order_is_named(wire: KafkaWire) -> None:
    """The same record twice: the second one has the offset of the first."""
    one = written([Record(b"k", b"v")])
    batch = only_batch(one)._replace(record_count=2, last_offset_delta=1).with_records(one[HEADER_BYTES:] * 2)
    (refused,) = await produce(wire, 9, batch)
    assert refused.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in refused.record_errors] == [1]


async def test_what_is_wrong_with_a_whole_batch_names_no_record(wire: KafkaWire) -> None:
    batch = written(KEYLESS[:1])
    (refused,) = await produce(wire, 9, batch[:-1] + b"\x09")
    assert (refused.error_code, refused.record_errors) == (ErrorCode.CORRUPT_MESSAGE, [])
