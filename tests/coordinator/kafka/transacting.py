"""A transactional producer and readers for tests, in the requests that they send."""

from __future__ import annotations

import asyncio
from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.batch import HEADER_BYTES, KafkaAttributes, read_batch_header
from protocol.kafka.messages.add_offsets_to_txn_request import AddOffsetsToTxnRequest
from protocol.kafka.messages.add_partitions_to_txn_request import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from protocol.kafka.messages.end_txn_request import EndTxnRequest
from protocol.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from protocol.kafka.messages.init_producer_id_request import InitProducerIdRequest
from protocol.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from protocol.kafka.messages.offset_fetch_request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.kafka.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from protocol.kafka.records import read_records
from tests.coordinator.kafka.wire import KafkaWire
from tests.protocol.kafka.written import Record, written

PATIENCE_S = 10


async def made_topic(wire: KafkaWire, name: str) -> None:
    """A topic with one partition."""
    (topic,) = (await wire.ask(MetadataRequest([MetadataRequestTopic(name=name)]), 9)).topics
    assert topic.error_code == ErrorCode.NONE


class TransactionalProducer:
    """Writes to partition 0 of topics, and numbers what it writes as its client would."""

    def __init__(self, wire: KafkaWire, transactional_id: str) -> None:
        self.wire = wire
        self.transactional_id = transactional_id
        self.producer_id = self.epoch = -1
        self.sequences: dict[str, int] = {}

    @classmethod
    async def begun(cls, wire: KafkaWire, transactional_id: str) -> TransactionalProducer:
        """One that has its id and epoch."""
        producer = cls(wire, transactional_id)
        asked = FindCoordinatorRequest(key_type=1, coordinator_keys=[transactional_id])
        (found,) = (await wire.ask(asked, 4)).coordinators
        assert found.error_code == ErrorCode.NONE
        assert await producer.init() == ErrorCode.NONE
        return producer

    async def init(self, timeout_ms: int = 60_000) -> int:
        """Asks for an id and an epoch, or with those that it has for the next; returns the error code."""
        asked = InitProducerIdRequest(self.transactional_id, timeout_ms, self.producer_id, self.epoch)
        told = await self.wire.ask(asked, 5)
        if not told.error_code:
            self.producer_id, self.epoch = told.producer_id, told.producer_epoch
            self.sequences.clear()
        return int(told.error_code)

    def request(self, topic: str, *values: bytes, sequence: int) -> ProduceRequest:
        """The request that writes ``values``, numbered from ``sequence`` on."""
        batch = written(
            [Record(None, value) for value in values],
            producer=(self.producer_id, self.epoch, sequence),
            transactional=True,
        )
        data = [TopicProduceData(topic, partition_data=[PartitionProduceData(0, batch)])]
        return ProduceRequest(self.transactional_id, -1, 10_000, data)

    async def write(self, topic: str, *values: bytes, version: int, sequence: int | None = None) -> int:
        """Writes a batch; returns the error code."""
        base = self.sequences.get(topic, 0) if sequence is None else sequence
        told = await self.wire.ask(self.request(topic, *values, sequence=base), version)
        code = int(told.responses[0].partition_responses[0].error_code)
        if not code and sequence is None:
            self.sequences[topic] = base + len(values)
        return code

    async def add(self, *topics: str, version: int) -> int:
        """Makes partition 0 of topics part of the transaction, as old producers do; returns the error code."""
        added = [AddPartitionsToTxnTopic(topic, [0]) for topic in topics]
        asked = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=added,
        )
        told = (await self.wire.ask(asked, version)).results_by_topic_v3_and_below
        assert [topic.name for topic in told] == list(topics)
        (code,) = {each.partition_error_code for topic in told for each in topic.results_by_partition}
        return int(code)

    async def add_offsets(self, group: str, *, version: int) -> int:
        """Makes a group part of the transaction; returns the error code."""
        asked = AddOffsetsToTxnRequest(self.transactional_id, self.producer_id, self.epoch, group)
        return int((await self.wire.ask(asked, version)).error_code)

    async def commit_offset(self, group: str, topic: str, offset: int, *, version: int) -> int:
        """Has the offset of partition 0 take effect with the transaction; returns the error code."""
        topics = [TxnOffsetCommitRequestTopic(topic, partitions=[TxnOffsetCommitRequestPartition(0, offset)])]
        asked = TxnOffsetCommitRequest(self.transactional_id, group, self.producer_id, self.epoch, topics=topics)
        (told,) = (await self.wire.ask(asked, version)).topics
        return int(told.partitions[0].error_code)

    async def end(self, *, committed: bool, version: int) -> int:
        """Ends the transaction; returns the error code."""
        told = await self.wire.ask(
            EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, committed), version
        )
        if not told.error_code and version >= 5:
            self.producer_id, self.epoch = told.producer_id, told.producer_epoch
            self.sequences.clear()
        return int(told.error_code)


async def fetched(wire: KafkaWire, topic: str, offset: int, *, committed: bool) -> Any:
    """What is in partition 0 from ``offset`` on, in one answer."""
    asked = FetchRequest(
        max_wait_ms=50,
        min_bytes=1,
        isolation_level=int(committed),
        topics=[FetchTopic(topic, partitions=[FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)])],
    )
    (answered,) = (await wire.ask(asked, 12)).responses
    (partition,) = answered.partitions
    assert partition.error_code == ErrorCode.NONE
    return partition


def _values(records: bytes) -> list[bytes]:
    values: list[bytes] = []
    at = 0
    while at < len(records):
        header = read_batch_header(records, at)
        if not header.attributes & KafkaAttributes.CONTROL:
            content = records[at + HEADER_BYTES : at + header.size]
            values += [value or b"" for value in read_records(content, header.record_count).values]
        at += header.size
    return values


def _next_offset(records: bytes, offset: int) -> int:
    at = 0
    while at < len(records):
        header = read_batch_header(records, at)
        at, offset = at + header.size, header.base_offset + header.last_offset_delta + 1
    return offset


async def values_read(wire: KafkaWire, topic: str, *, committed: bool, until: bytes | None = None) -> list[bytes]:
    """The values of all records, by a reader that goes on until there is nothing, or the value ``until``."""
    offset, values = 0, list[bytes]()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            partition = await fetched(wire, topic, offset, committed=committed)
            if not partition.records and (until is None or until in values):
                return values
            values += _values(partition.records or b"")
            offset = _next_offset(partition.records or b"", offset)


async def bytes_read(wire: KafkaWire, topic: str, end: int) -> bytes:
    """All that a reader of committed records gets on its way to the offset ``end``."""
    offset, read = 0, b""
    async with asyncio.timeout(PATIENCE_S):
        while offset < end:
            partition = await fetched(wire, topic, offset, committed=True)
            read += partition.records or b""
            offset = _next_offset(partition.records or b"", offset)
    assert offset == end
    return read


async def committed_offset(wire: KafkaWire, group: str, topic: str, *, settled: bool = False) -> int:
    """The committed offset of partition 0, or -1000 less the error code; ``settled`` waits until it is decided."""
    asked = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group, topics=[OffsetFetchRequestTopics(topic, partition_indexes=[0])])],
        require_stable=True,
    )
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (found,) = (await wire.ask(asked, 8)).groups
            partition = found.topics[0].partitions[0]
            if partition.error_code and not (settled and partition.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT):
                return -1000 - int(partition.error_code)
            if not partition.error_code:
                return int(partition.committed_offset)
            await asyncio.sleep(0.01)
