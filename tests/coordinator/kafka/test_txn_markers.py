"""WriteTxnMarkers over the Kafka port: administrators end transactions in partitions, whatever coordinators know of them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordinator.embedded import Coordinator
from protocol.errors import ErrorCode
from protocol.hashing import partition_for_group, partition_for_transactional_id
from protocol.kafka.messages.describe_producers_request import DescribeProducersRequest, TopicRequest
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from protocol.kafka.messages.write_txn_markers_request import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.coordinator.kafka.transacting import TransactionalProducer, committed_offset, made_topic, values_read
from tests.coordinator.kafka.wire import KafkaWire, connected

VERSIONS = (1, 2)


def marker(
    producer_id: int, epoch: int, topic: str = "t", *indexes: int, committed: bool = False, transaction_version: int = 0
) -> WritableTxnMarker:
    topics = [WritableTxnMarkerTopic(topic, list(indexes or (0,)))]
    return WritableTxnMarker(producer_id, epoch, committed, topics, 7, transaction_version)


async def ended(wire: KafkaWire, *markers: WritableTxnMarker, version: int = 2) -> list[tuple[int, str, int, int]]:
    """Of each partition of each marker: producer id, topic, index and error code."""
    told = await wire.ask(WriteTxnMarkersRequest(list(markers)), version)
    return [
        (each.producer_id, topic.name, partition.partition_index, partition.error_code)
        for each in told.markers
        for topic in each.topics
        for partition in topic.partitions
    ]


async def open_in(wire: KafkaWire, topic: str, index: int = 0) -> Sequence[tuple[int, int]]:
    """Ids and epochs of the producers that have a transaction open in a partition."""
    (told,) = (await wire.ask(DescribeProducersRequest([TopicRequest(topic, [index])]), 0)).topics
    active = told.partitions[0].active_producers
    return [(each.producer_id, each.producer_epoch) for each in active if each.current_txn_start_offset >= 0]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_hanging_transaction_is_aborted_where_it_is(tmp_path: Path, version: int) -> None:
    """Its coordinator has lost its log: nobody else would end it, and readers of committed records wait for it for ever."""
    async with Coordinator(kafka_port=-1, data_dir=str(tmp_path)) as running, connected(running.kafka_address) as wire:
        await made_topic(wire, "t")
        lost = await TransactionalProducer.begun(wire, "lost")
        assert await lost.write("t", b"lost", version=12) == ErrorCode.NONE
        assert await lost.commit_offset("g", "t", 3, version=5) == ErrorCode.NONE
    shutil.rmtree(tmp_path / f"__transaction_state-{partition_for_transactional_id('lost')}")
    async with Coordinator(kafka_port=-1, data_dir=str(tmp_path)) as running, connected(running.kafka_address) as wire:
        await wire.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        kept = await TransactionalProducer.begun(wire, "other")
        assert await kept.write("t", b"kept", version=12) == ErrorCode.NONE
        assert await kept.end(committed=True, version=5) == ErrorCode.NONE
        assert await values_read(wire, "t", committed=True) == []
        groups = "__consumer_offsets", partition_for_group("g")
        for topic, index in (("t", 0), groups):
            (found,) = await open_in(wire, topic, index)
            assert found == (lost.producer_id, lost.epoch)
            for _ in range(2):  # ended already: nothing is written
                told = await ended(wire, marker(*found, topic, index), version=version)
                assert told == [(lost.producer_id, topic, index, ErrorCode.NONE)]
            assert await open_in(wire, topic, index) == []
        assert await values_read(wire, "t", committed=True, until=b"kept") == [b"kept"]
        assert await committed_offset(wire, "g", "t", settled=True) == -1


async def test_each_partition_of_each_marker_has_an_answer(wire: KafkaWire) -> None:
    for topic in ("t", "u"):
        await made_topic(wire, topic)
    one, two = [await TransactionalProducer.begun(wire, name) for name in ("one", "two")]
    for producer in (one, two):
        for topic in ("t", "u"):
            assert await producer.write(topic, producer.transactional_id.encode(), version=12) == ErrorCode.NONE
    unknown = marker(5_000_000, 0, "t", 0, 9, 0)
    told = await ended(
        wire, marker(one.producer_id, one.epoch, committed=True), unknown, marker(two.producer_id, two.epoch, "none")
    )
    assert told == [
        (one.producer_id, "t", 0, ErrorCode.NONE),
        *[(5_000_000, "t", index, code) for index, code in ((0, 0), (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (0, 0))],
        (two.producer_id, "none", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert await open_in(wire, "t") == [(two.producer_id, two.epoch)]
    assert len(await open_in(wire, "u")) == 2
    assert await ended(wire) == []
    assert await ended(wire, WritableTxnMarker(1, 1, False, [], 0)) == []


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_epoch_that_is_over_ends_nothing_and_a_later_one_does(wire: KafkaWire, version: int) -> None:
    """As in Kafka, whose coordinators end a transaction under the epoch that follows when they fence its producer."""
    await made_topic(wire, "t")
    producer = await TransactionalProducer.begun(wire, "id")
    for _ in range(2):
        assert await producer.write("t", b"committed", version=12) == ErrorCode.NONE
        assert await producer.end(committed=True, version=5) == ErrorCode.NONE
    assert await producer.write("t", b"open", version=12) == ErrorCode.NONE
    fenced = [(producer.producer_id, "t", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]
    assert await ended(wire, marker(producer.producer_id, producer.epoch - 1), version=version) == fenced
    under_kip_1228 = marker(producer.producer_id, producer.epoch, transaction_version=2)
    if version == 2:
        assert await ended(wire, under_kip_1228) == fenced
    assert await open_in(wire, "t") == [(producer.producer_id, producer.epoch)]
    under_kip_1228.producer_epoch += 1
    assert await ended(wire, under_kip_1228, version=version) == [(producer.producer_id, "t", 0, ErrorCode.NONE)]
    assert await open_in(wire, "t") == []
    assert await values_read(wire, "t", committed=True) == [b"committed"] * 2
