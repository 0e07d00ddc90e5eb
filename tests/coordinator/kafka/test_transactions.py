"""Transactions over the port for Kafka's clients, of producers with an epoch for each (KIP-890, transaction.version 2)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.embedded import Coordinator
from protocol.errors import ErrorCode
from protocol.kafka.batch import read_batch_header
from protocol.kafka.messages.api_versions_request import ApiVersionsRequest
from protocol.kafka.messages.describe_producers_request import DescribeProducersRequest, TopicRequest
from protocol.kafka.messages.describe_transactions_request import DescribeTransactionsRequest
from protocol.kafka.messages.end_txn_request import EndTxnRequest
from protocol.kafka.messages.find_coordinator_request import FindCoordinatorRequest
from protocol.kafka.messages.list_transactions_request import ListTransactionsRequest
from protocol.kafka.messages.txn_offset_commit_request import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tests.coordinator.kafka.transacting import (
    TransactionalProducer,
    bytes_read,
    committed_offset,
    made_topic,
    values_read,
)
from tests.coordinator.kafka.wire import KafkaWire, connected


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    async with Coordinator(kafka_port=-1, flush="os", node_id=1) as running:
        yield running


@pytest.fixture
async def wire(coordinator: Coordinator) -> AsyncIterator[KafkaWire]:
    async with connected(coordinator.kafka_address) as connection:
        await made_topic(connection, "t")
        yield connection


async def test_api_versions_says_that_transactions_have_an_epoch_each(wire: KafkaWire) -> None:
    for version in (3, 4):
        told = await wire.ask(ApiVersionsRequest("a client", "1"), version)
        (feature,) = told.finalized_features
        assert (feature.name, feature.max_version_level, told.finalized_features_epoch) == ("transaction.version", 2, 0)
    assert not (await wire.ask(ApiVersionsRequest(), 2)).finalized_features


async def test_the_coordinator_of_a_transactional_id_is_found(wire: KafkaWire) -> None:
    told = await wire.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["id", ""]), 4)
    assert [(each.key, each.error_code, each.node_id) for each in told.coordinators] == [
        ("id", ErrorCode.NONE, 1),
        ("", ErrorCode.INVALID_REQUEST, -1),
    ]
    (unknown,) = (await wire.ask(FindCoordinatorRequest(key_type=9, coordinator_keys=["id"]), 4)).coordinators
    assert unknown.error_code == ErrorCode.INVALID_REQUEST


async def test_each_transaction_has_an_epoch_and_readers_see_what_is_committed(wire: KafkaWire) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    first = producer.epoch
    assert await producer.write("t", b"kept", version=12) == ErrorCode.NONE
    assert await values_read(wire, "t", committed=True) == []
    assert await values_read(wire, "t", committed=False) == [b"kept"]
    assert await producer.end(committed=True, version=5) == ErrorCode.NONE
    assert producer.epoch == first + 1
    assert await producer.write("t", b"dropped", version=12) == ErrorCode.NONE
    assert await producer.end(committed=False, version=5) == ErrorCode.NONE
    assert await producer.write("t", b"after", version=12) == ErrorCode.NONE
    assert await producer.end(committed=True, version=5) == ErrorCode.NONE
    assert await values_read(wire, "t", committed=True, until=b"after") == [b"kept", b"after"]
    assert await values_read(wire, "t", committed=False) == [b"kept", b"dropped", b"after"]


async def test_a_reader_of_committed_records_gets_past_what_was_aborted(wire: KafkaWire) -> None:
    """No answer is without a record or a control batch while there is something to pass: librdkafka takes such an answer for
    a record that does not fit, and asks for more and more bytes."""
    producer = await TransactionalProducer.begun(wire, "id")
    for _ in range(3):
        assert await producer.write("t", b"dropped", b"dropped", version=12) == ErrorCode.NONE
        assert await producer.end(committed=False, version=5) == ErrorCode.NONE
    read = await bytes_read(wire, "t", 9)
    headers = []
    at = 0
    while at < len(read):
        header = read_batch_header(read, at)
        headers.append(header)
        at += header.size
    assert all(header.record_count for header in headers)
    assert sum(header.last_offset_delta + 1 for header in headers) == 9


async def test_a_repeated_end_is_answered_with_the_same_epoch_and_another_verdict_refused(wire: KafkaWire) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    assert await producer.write("t", b"a", version=12) == ErrorCode.NONE
    request = EndTxnRequest("id", producer.producer_id, producer.epoch, True)
    told = [await wire.ask(request, 5) for _ in range(2)]
    assert [each.error_code for each in told] == [0, 0]
    assert [each.producer_epoch for each in told] == [producer.epoch + 1] * 2
    other = EndTxnRequest("id", producer.producer_id, producer.epoch, False)
    assert (await wire.ask(other, 5)).error_code == ErrorCode.INVALID_TXN_STATE


async def test_a_producer_whose_id_another_has_is_fenced(wire: KafkaWire) -> None:
    old = await TransactionalProducer.begun(wire, "id")
    assert await old.write("t", b"lost", version=12) == ErrorCode.NONE
    new = await TransactionalProducer.begun(wire, "id")
    assert (new.producer_id, new.epoch) == (old.producer_id, old.epoch + 1)
    assert await old.write("t", b"late", version=12) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await old.end(committed=True, version=5) == ErrorCode.PRODUCER_FENCED
    assert await values_read(wire, "t", committed=True) == []


async def test_offsets_count_when_the_transaction_commits(wire: KafkaWire) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    for committed, expected in ((False, -1), (True, 7)):
        asked = TxnOffsetCommitRequest(
            "id",
            "g",
            producer.producer_id,
            producer.epoch,
            topics=[TxnOffsetCommitRequestTopic("t", partitions=[TxnOffsetCommitRequestPartition(0, 7)])],
        )
        told = await wire.ask(asked, 5)
        assert [each.error_code for topic in told.topics for each in topic.partitions] == [0]
        assert await committed_offset(wire, "g", "t") == -1000 - ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await producer.end(committed=committed, version=5) == ErrorCode.NONE
        assert await committed_offset(wire, "g", "t", settled=True) == expected


async def test_administrators_see_transactions(wire: KafkaWire) -> None:
    producer = await TransactionalProducer.begun(wire, "id")
    assert await producer.write("t", b"a", version=12) == ErrorCode.NONE
    await wire.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["other"]), 4)
    (described, missing) = (await wire.ask(DescribeTransactionsRequest(["id", "other"]), 0)).transaction_states
    assert (described.transaction_state, described.producer_id) == ("Ongoing", producer.producer_id)
    assert [(topic.topic, topic.partitions) for topic in described.topics] == [("t", [0])]
    assert missing.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    for version in (0, 1):
        told = await wire.ask(ListTransactionsRequest(["Ongoing", "Odd"]), version)
        assert told.unknown_state_filters == ["Odd"]
        assert [(each.transactional_id, each.transaction_state) for each in told.transaction_states] == [
            ("id", "Ongoing")
        ]
    assert (await wire.ask(ListTransactionsRequest(["Empty"]), 1)).transaction_states == []
    (topic,) = (await wire.ask(DescribeProducersRequest([TopicRequest("t", [0, 9])]), 0)).topics
    (active,) = topic.partitions[0].active_producers
    assert (active.producer_id, active.producer_epoch, active.current_txn_start_offset) == (
        producer.producer_id,
        producer.epoch,
        0,
    )
    assert topic.partitions[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
