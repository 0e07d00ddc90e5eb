"""Produce over the Kafka port: what comes behind a batch that was refused for now is refused for now as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from coordinator.embedded import Coordinator
from coordinator.kafka.codes import KafkaCode
from coordinator.kafka.kafka_node import KafkaNode
from coordinator.kafka.refused_batches import RefusedBatches
from protocol.errors import ErrorCode
from protocol.kafka.batch import KafkaBatchHeader, read_batch_header
from protocol.kafka.messages.create_partitions_request import CreatePartitionsRequest, CreatePartitionsTopic
from protocol.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from protocol.kafka.messages.produce_request import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.records import PartitionProduceResponse
from tests.coordinator.kafka.wire import KafkaWire, connected
from tests.protocol.kafka.written import Record, written

PRODUCER, EPOCH = 77, 0
GAPS = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
FOR_NOW = (
    *(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    *(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR),
)
BY_ID = 13
"""A version of Produce that names topics by their ids."""


def batch(sequence: int, records: int = 2, epoch: int = EPOCH) -> bytes:
    return written([Record(None, b"v")] * records, producer=(PRODUCER, epoch, sequence))


def header(sequence: int, records: int = 2, epoch: int = EPOCH) -> KafkaBatchHeader:
    return read_batch_header(batch(sequence, records, epoch))


def told(refused: RefusedBatches, at: KafkaBatchHeader, code: int, connection: int = 1, index: int = 0) -> int:
    result = refused.told((connection, "t", index), at, PartitionProduceResponse(index, code, error_message="why"))
    return result.error_code


@pytest.fixture
async def running() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1) as daemon, connected(daemon.kafka_address) as wire:
        await wire.ask(CreateTopicsRequest([CreatableTopic("t", 1, 1)], 10_000), 4)
        yield daemon


async def produce(wire: KafkaWire, sequence: int, index: int = 1) -> int:
    data = [PartitionProduceData(index, batch(sequence))]
    answer = await wire.ask(ProduceRequest(None, -1, 9_000, [TopicProduceData("t", partition_data=data)]), 9)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


async def produce_by_id(wire: KafkaWire, topic_id: bytes, sequence: int) -> int:
    data = [PartitionProduceData(0, batch(sequence))]
    asked = ProduceRequest(None, -1, 9_000, [TopicProduceData(topic_id=topic_id, partition_data=data)])
    answer = await wire.ask(asked, BY_ID)
    code: int = answer.responses[0].partition_responses[0].error_code
    return code


async def grow(wire: KafkaWire) -> None:
    grown = await wire.ask(CreatePartitionsRequest([CreatePartitionsTopic("t", 2)], 10_000), 2)
    assert grown.results[0].error_code == ErrorCode.NONE


async def test_batches_under_way_behind_a_refused_one_are_sent_again_in_order(running: Coordinator) -> None:
    """The partition comes while a producer has three batches under way, of which the first is refused already."""
    async with connected(running.kafka_address) as wire:
        assert await produce(wire, 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await grow(wire)
        assert [await produce(wire, sequence) for sequence in (2, 4)] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
        assert [await produce(wire, sequence) for sequence in (0, 2, 4)] == [ErrorCode.NONE] * 3


async def test_a_gap_without_a_refused_batch_is_told(running: Coordinator) -> None:
    """Records before it are lost, or were never sent: the producer has to know."""
    async with connected(running.kafka_address) as wire:
        await grow(wire)
        assert await produce(wire, 2) == ErrorCode.UNKNOWN_PRODUCER_ID
        assert await produce(wire, 0) == ErrorCode.NONE
        assert await produce(wire, 4) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert await produce(wire, 2) == ErrorCode.NONE


async def test_another_connection_has_no_batch_under_way_behind_it(running: Coordinator) -> None:
    async with connected(running.kafka_address) as wire, connected(running.kafka_address) as other:
        assert await produce(wire, 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await grow(wire)
        assert await produce(other, 2) == ErrorCode.UNKNOWN_PRODUCER_ID


async def test_a_topic_that_is_not_known_yet_refuses_for_now(
    running: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another node has made the topic, and this one hears of it while a producer has three batches under way."""
    async with connected(running.kafka_address) as wire:
        made = await wire.ask(CreateTopicsRequest([CreatableTopic("new", 1, 1)], 10_000), 7)
        topic_id = made.topics[0].topic_id
        with monkeypatch.context() as unheard:
            unheard.setattr(KafkaNode, "topic_of", lambda node, topic_id: None)
            assert await produce_by_id(wire, topic_id, 0) == KafkaCode.UNKNOWN_TOPIC_ID
        codes = [await produce_by_id(wire, topic_id, sequence) for sequence in (2, 4, 0, 2, 4)]
        assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2 + [ErrorCode.NONE] * 3


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("code", FOR_NOW)
def test_a_chain_of_refused_batches_is_told_what_the_first_was_told(code: ErrorCode, gap: ErrorCode) -> None:
    refused = RefusedBatches()
    assert told(refused, header(10, 3), code) == code
    assert told(refused, header(13), gap) == code
    assert told(refused, header(15, 1), gap) == code


def test_an_answer_without_room_for_texts_gets_none() -> None:
    refused = RefusedBatches()
    told(refused, header(10), ErrorCode.NOT_ENOUGH_REPLICAS)
    gap = PartitionProduceResponse(0, GAPS[0])
    assert refused.told((1, "t", 0), header(12), gap) == replace(gap, error_code=ErrorCode.NOT_ENOUGH_REPLICAS)


@pytest.mark.parametrize("order", list(permutations((12, 14, 16))))
def test_batches_behind_a_refused_one_are_told_so_in_any_order(order: tuple[int, ...]) -> None:
    """A disk refuses several batches together, and the next ones are looked at while these are told."""
    refused = RefusedBatches()
    for _ in range(3):  # each time that the producer sends all of them again
        for sequence in (10, *order):
            code = ErrorCode.KAFKA_STORAGE_ERROR if sequence in (10, 14) else GAPS[0]
            assert told(refused, header(sequence), code) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_batch_that_is_taken_is_no_reason_any_more() -> None:
    refused = RefusedBatches()
    told(refused, header(10), ErrorCode.NOT_ENOUGH_REPLICAS)
    assert told(refused, header(10), ErrorCode.NONE) == ErrorCode.NONE
    assert told(refused, header(14), GAPS[0]) == GAPS[0]


def test_a_batch_before_it_that_is_taken_ends_nothing() -> None:
    """The first waits for its followers, the disk refuses the second, and the followers come before the third does."""
    refused = RefusedBatches()
    told(refused, header(10), ErrorCode.KAFKA_STORAGE_ERROR)
    assert told(refused, header(8), ErrorCode.NONE) == ErrorCode.NONE
    assert told(refused, header(12), GAPS[0]) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_batch_behind_it_that_is_taken_ends_it() -> None:
    """Another node has taken the first."""
    refused = RefusedBatches()
    told(refused, header(10), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert told(refused, header(12), ErrorCode.NONE) == ErrorCode.NONE
    assert told(refused, header(16), GAPS[0]) == GAPS[0]
    assert len(refused) == 0


def test_one_that_was_taken_elsewhere_gives_way_to_the_one_that_is_refused_now() -> None:
    """What comes behind that is told so each time that it is refused; the first time still by the earlier one."""
    refused = RefusedBatches()
    told(refused, header(10), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for _ in range(4):  # the leader is another node in between
        assert told(refused, header(20), ErrorCode.NOT_ENOUGH_REPLICAS) == ErrorCode.NOT_ENOUGH_REPLICAS
        assert told(refused, header(22), GAPS[0]) in FOR_NOW
    assert told(refused, header(22), GAPS[0]) == GAPS[0]


def test_many_that_are_refused_by_themselves_do_not_end_it() -> None:
    refused = RefusedBatches()
    for _ in range(2):
        for sequence in range(0, 400, 2):
            assert told(refused, header(sequence), ErrorCode.KAFKA_STORAGE_ERROR) == ErrorCode.KAFKA_STORAGE_ERROR
        assert told(refused, header(400), GAPS[0]) == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_connection_that_has_ended_has_nothing_under_way() -> None:
    refused = RefusedBatches(most=3)
    for connection in (1, 2):
        told(refused, header(10), ErrorCode.NOT_LEADER_OR_FOLLOWER, connection)
    refused.forget(1)
    refused.forget(3)
    assert len(refused) == 1
    assert told(refused, header(12), GAPS[0], connection=1) == GAPS[0]
    assert told(refused, header(12), GAPS[0], connection=2) == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_what_is_remembered_of_a_connection_goes_with_it(
    running: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, told_by = list[RefusedBatches](), RefusedBatches.told

    def noted(refused: RefusedBatches, *asked: Any) -> PartitionProduceResponse:
        seen.append(refused)
        return told_by(refused, *asked)

    monkeypatch.setattr(RefusedBatches, "told", noted)
    async with connected(running.kafka_address) as wire:
        assert await produce(wire, 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(seen[0]) == 1
    async with asyncio.timeout(10):
        while len(seen[0]):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", ["x" * 250, "\U0001f600", "a/b", ""])
def test_names_that_no_topic_can_have_are_not_remembered(name: str) -> None:
    refused = RefusedBatches()
    refused.told((1, name, 0), header(10), PartitionProduceResponse(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    assert len(refused) == 0


def test_batches_that_are_told_so_are_bounded() -> None:
    refused = RefusedBatches()
    told(refused, header(0), ErrorCode.NOT_ENOUGH_REPLICAS)
    codes = [told(refused, header(sequence), GAPS[0]) for sequence in range(2, 200, 2)]
    assert codes == [ErrorCode.NOT_ENOUGH_REPLICAS] * 64 + [GAPS[0]] * 35


def test_records_that_are_lost_are_told_at_the_second_attempt() -> None:
    """A batch was refused here, taken by another node and lost there: what follows it can never be taken."""
    refused = RefusedBatches()
    told(refused, header(10), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert told(refused, header(12), GAPS[0]) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert told(refused, header(12), GAPS[0]) == GAPS[0]
    assert told(refused, header(12), GAPS[0]) == GAPS[0]


def test_only_what_follows_the_refused_batch_is_behind_it() -> None:
    refused = RefusedBatches()
    cases = [(header(8), 1, 0), (header(12, epoch=1), 1, 0), (header(12), 2, 0), (header(12), 1, 1)]
    for at, connection, index in cases:
        told(refused, header(10), ErrorCode.NOT_ENOUGH_REPLICAS)
        assert told(refused, at, GAPS[0], connection, index) == GAPS[0]


def test_sequences_begin_anew_after_the_last_one() -> None:
    refused = RefusedBatches()
    told(refused, header(2**31 - 2), ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert told(refused, header(0), GAPS[0]) == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_PRODUCER_EPOCH, *GAPS])
def test_what_is_refused_for_good_explains_no_gap(code: ErrorCode) -> None:
    refused = RefusedBatches()
    assert told(refused, header(10), code) == code
    assert told(refused, header(12), GAPS[0]) == GAPS[0]
    assert len(refused) == 0


def test_what_is_remembered_is_bounded() -> None:
    refused = RefusedBatches(most=3)
    for connection in range(5):
        told(refused, header(10), ErrorCode.NOT_LEADER_OR_FOLLOWER, connection)
    assert len(refused) == 3
    assert told(refused, header(12), GAPS[0], connection=0) == GAPS[0]
    assert told(refused, header(12), GAPS[0], connection=4) == ErrorCode.NOT_LEADER_OR_FOLLOWER
